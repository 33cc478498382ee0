"""The example of tasks: a service, a worker and real pictures, some of them broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.flights_runs import ROOT, run_example

pytestmark = pytest.mark.needs(
    "module:PIL", "module:fastapi", "module:httpx", "module:matplotlib", "module:uvicorn"
)
DEMO = ROOT / "examples" / "thumbnails" / "demo.py"


@pytest.mark.long(reason="starts a web service and a worker, and makes many pictures")
def test_thumbnails_are_made_and_broken_files_are_dead_letters_until_they_are_mended(
    tmp_path: Path,
) -> None:
    done = run_example(DEMO, "--out", tmp_path, seconds=120)
    assert done.returncode == 0, done.stdout
    assert "Everything is as expected" in done.stdout
    made = {path.name: path.read_bytes() for path in tmp_path.glob("*.png")}
    assert {f"grace_hopper-{width}.png" for width in (64, 128, 256)} <= made.keys()
    assert made["cut-off-256.png"] == made["grace_hopper-256.png"]
    assert all(picture.startswith(b"\x89PNG") for picture in made.values())


def test_a_folder_without_pictures_is_refused(tmp_path: Path) -> None:
    done = run_example(DEMO, "--pictures", tmp_path, "--out", tmp_path, seconds=60)
    assert done.returncode == 2
    assert "there is no picture in" in done.stdout
