"""Source files: which are a program's own, and that a change of one is seen once."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from cassq.worker.sources import WatchedFiles, loaded_sources, own_sources


def test_only_files_below_the_directory_that_are_not_installed_are_watched(tmp_path: Path) -> None:
    own = tmp_path / "app" / "tasks.py"
    installed = tmp_path / ".venv" / "site-packages" / "package.py"
    data = tmp_path / "data.txt"
    for path in (own, installed, data):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    files = [str(own), str(installed), str(data), json.__file__, "<frozen>"]
    assert set(own_sources(files, tmp_path)) == {str(own)}


def test_loaded_modules_are_found_by_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loaded_for_sources.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert loaded_sources(tmp_path) == {}
    __import__("loaded_for_sources")
    assert set(loaded_sources(tmp_path)) == {str(tmp_path / "loaded_for_sources.py")}
    sys.modules.pop("loaded_for_sources")


def test_a_change_is_seen_once_also_one_made_before_the_first_look(tmp_path: Path) -> None:
    file = tmp_path / "tasks.py"
    file.write_text("1")
    states = own_sources([str(file)], tmp_path)
    file.write_text("1 + 1")
    watched = WatchedFiles()
    watched.add(states)
    assert watched.changed() == [str(file)]
    assert watched.changed() == []
    watched.add(states)  # another process reports what it loaded
    assert watched.changed() == []
    os.utime(file, ns=(1, 1))
    assert watched.changed() == [str(file)]
    file.unlink()
    assert watched.changed() == [str(file)]
    file.write_text("1")
    assert watched.changed() == [str(file)]
