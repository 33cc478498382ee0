"""Power cuts at any moment of real work: all that was acknowledged is there, in any legal state.

`python -m tests.powercuts` does the same for longer.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.powercuts.judge import Promises, cuts, drained, told_of
from tests.powercuts.platter import Platter
from tests.powercuts.record import Event, compiled, recorded

pytestmark = pytest.mark.needs("cc")

IMAGES = 40


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """What some work did to its disk."""
    directory = tmp_path_factory.mktemp("work")
    root = directory / "root"
    root.mkdir()
    return recorded(compiled(directory), root, ["-m", "tests.powercuts.work", "7", "30"])


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Where states are made."""
    return tmp_path / "image"


def test_whatever_a_power_cut_leaves_everything_acknowledged_is_there(
    record: list[Event], image: Path
) -> None:
    looked, wrong = cuts(record, IMAGES, "short", image)
    assert looked == IMAGES + IMAGES // 2
    assert not wrong, "\n".join(told_of(cut, record) for cut in wrong)


def test_without_a_power_cut_the_record_gives_what_is_on_the_disk(
    record: list[Event], image: Path
) -> None:
    """Nothing that is done to the disk is missing in the record."""
    platter, promises = Platter(), Promises()
    for event in record:
        platter.add(event)
        promises.hear(event)
    for file in [file for file in platter.names.values() if file is not None]:
        file.sync()
    image.mkdir()
    platter.leave(image, random.Random(0), {p: s[-1:] for p, s in promises.pages.items()})
    assert promises.owed, "the work leaves something"
    found, findings = drained(image / "data")
    assert not findings
    assert promises.owed <= found.keys() <= promises.begun


@pytest.mark.long(reason="a file system of its own, mounted again for each cut")
@pytest.mark.parametrize("kinds", ["D", "Y"], ids=["of data", "of names"])
def test_a_sync_that_does_nothing_is_seen(record: list[Event], image: Path, kinds: str) -> None:
    """Without the calls of one kind in the record, states are found in which promises are broken:
    so none of them is made in vain, and this test sees it when one is missing."""
    left = [event for event in record if event.kind not in kinds]
    _, wrong = cuts(left, 2 * IMAGES, "unsynced", image, stop_at=1)
    assert wrong
