"""Opening: killed while a directory is made, queues are created and files are adopted."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import cassq
from tests.faults.actors import Act
from tests.integration.stage import drain, payloads, pipe_files, push, reap


@pytest.mark.parametrize("seed", range(3))
def test_a_directory_whose_maker_was_killed_opens(tmp_path: Path, act: Act, seed: int) -> None:
    """Killed at some instant of the first opening, creating and pushing, again and again."""
    chance = random.Random(seed)
    for round_ in range(15):
        url = f"file://{tmp_path}/data{round_}"
        makers = [act("create", url) for _ in range(2)]
        for maker in makers:
            maker.expect("waiting")
            maker.say("go")
        for maker in makers:
            maker.listen(chance.choice([0.0, 0.002, 0.01, 0.02]))
            maker.kill()
        done = sum(bool(maker.reports("done")) for maker in makers)
        with cassq.connect(url) as client:
            queue = client.create_queue("jobs")
            push(queue, b"mine")
            reap(client)
            found = payloads(drain(queue.popper()))
            assert b"mine" in found
            assert done + 1 <= len(found) <= 3
            assert queue.audit().findings == []
            reap(client)
            assert pipe_files(client) == []


def test_a_pipe_whose_writer_was_killed_during_a_commit_is_there_or_not(
    tmp_path: Path, act: Act
) -> None:
    """SQLite shows its row to nobody, until all are gone and the log is read anew."""
    directory = tmp_path / "data"
    with cassq.connect(f"file://{directory}") as client:
        client.create_queue("jobs")
    keeper = act("keep_open", str(directory / "catalog.sqlite"))
    keeper.expect("open")
    maker = act("make_unseen_pipe", str(directory))
    assert maker.expect("unseen")[1] is True
    maker.kill()
    opener = act("adopt", str(directory))
    opener.expect("adopted")
    opener.kill()
    keeper.kill()
    with cassq.connect(f"file://{directory}") as client:
        queue = client.queue("jobs")
        push(queue, b"mine")
        reap(client)
        assert payloads(drain(queue.popper())) == [b"mine"]
        assert queue.audit().findings == []


def test_a_directory_with_spaces_and_letters_of_all_kinds_works(tmp_path: Path) -> None:
    place = tmp_path / "a directory" / "größe – 12 µm"
    with cassq.connect(f"file://{place}") as client:
        queue = client.create_queue("jobs")
        push(queue, b"x")
        assert payloads(drain(queue.popper())) == [b"x"]
    assert (place / "catalog.sqlite").exists()


def test_one_directory_under_two_names_is_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "data")
    with (
        cassq.connect(f"file://{tmp_path}/data") as one,
        cassq.connect(f"file://{tmp_path}/link") as other,
    ):
        push(one.create_queue("jobs"), b"x")
        assert payloads(drain(other.queue("jobs").popper())) == [b"x"]
