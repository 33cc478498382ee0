"""The command as a process among others: pipes, signals, terminals, kills in the middle."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest

from tests.integration.deadlines import eventually
from tests.shell import Shell

# More than a pipe takes while nobody reads it.
LINES = [b"%03d %s" % (number, b"x" * 1000) for number in range(300)]
BROKEN_PIPE = 128 + signal.SIGPIPE
MANY = b"".join(line + b"\n" for line in LINES)


@pytest.fixture
def shell(tmp_path: Path, url: str) -> Iterator[Shell]:
    """A place for commands, with a queue `mail`."""
    shell = Shell(tmp_path, url)
    shell.run("queue", "create", "mail")
    yield shell
    shell.close()


def counts(shell: Shell) -> dict[str, Any]:
    found: dict[str, Any] = shell.run("stats", "mail", "--json").json()["groups"]["default"]
    return found


def pushing(shell: Shell, first: bytes) -> subprocess.Popen[bytes]:
    """A push that has pushed a first line and waits for more."""
    process = shell.start("push", "mail")
    given(process).write(first + b"\n")
    assert first in shell.run("pop", "mail", "--wait", "60", "--no-ack").out
    return process


def popping(shell: Shell) -> subprocess.Popen[bytes]:
    """A pop that has begun to write `MANY` to a reader that reads no further."""
    shell.run("push", "mail", stdin=MANY)
    process = shell.start("pop", "mail", "--all", stderr=subprocess.PIPE)
    assert taken(process).read(1) == MANY[:1]
    return process


def given(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin


def taken(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout


def stdout_of(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stderr is not None
    return process.stderr


@contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    """A terminal: our side, and the command's."""
    ours, theirs = pty.openpty()
    try:
        yield ours, theirs
    finally:
        os.close(ours)
        with suppress(OSError):
            os.close(theirs)


def shown(ours: int, theirs: int) -> str:
    """All that a terminal was sent; the command has ended."""
    os.close(theirs)
    parts: list[bytes] = []
    with suppress(OSError):  # EIO is how the end of a terminal is told
        while part := os.read(ours, 65536):
            parts.append(part)
    return b"".join(parts).decode()


# --- pipes ----------------------------------------------------------------------------------


def test_a_line_is_pushed_as_soon_as_it_has_come(shell: Shell) -> None:
    process = pushing(shell, b"early")
    given(process).write(b"late")
    given(process).close()
    assert process.wait() == 0
    assert taken(process).read() == b"pushed 2 messages to mail\n"
    assert shell.run("pop", "mail", "--all").out == b"early\nlate\n"


def test_follow_writes_messages_as_they_come_and_ends_well(shell: Shell) -> None:
    process = shell.start("pop", "mail", "--follow")
    for line in (b"1\n", b"2\n"):
        shell.run("push", "mail", stdin=line)
        assert taken(process).readline() == line
    process.terminate()
    assert process.wait() == 0
    assert counts(shell)["committed"] == 2


def test_what_a_reader_did_not_take_is_given_back_and_not_counted(shell: Shell) -> None:
    process = popping(shell)
    taken(process).close()
    assert process.wait() == BROKEN_PIPE
    assert b"given back: 1 message" in stdout_of(process).read()
    assert counts(shell)["waiting"] == 300
    again = shell.run("pop", "mail", "--all", "--json").json_lines()
    assert {message["attempts"] for message in again} == {1}
    assert [message["payload"].encode() for message in again] == LINES


@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="no pipe can be made small here")
@pytest.mark.parametrize("lines", [1, 2, 40])
def test_a_reader_that_takes_a_few_lines_leaves_the_others(shell: Shell, lines: int) -> None:
    """Far more would fit into the pipe."""
    shell.run("push", "mail", stdin=b"".join(b"%d\n" % number for number in range(1000)))
    process = shell.start("pop", "mail", "--all", stderr=subprocess.PIPE)
    for number in range(lines):
        assert taken(process).readline() == b"%d\n" % number
    taken(process).close()
    assert process.wait() == BROKEN_PIPE
    assert b"given back" in stdout_of(process).read()
    assert counts(shell)["committed"] == lines
    again = shell.run("pop", "mail", "--all", "--json").json_lines()
    assert [int(message["payload"]) for message in again] == [*range(lines, 1000)]
    assert {message["attempts"] for message in again} == {1}


def test_a_reader_that_leaves_at_the_last_line_has_got_them_all(shell: Shell) -> None:
    shell.run("push", "mail", stdin=b"1\n2\n")
    process = shell.start("pop", "mail", "--all", stderr=subprocess.PIPE)
    assert [taken(process).readline() for _ in range(2)] == [b"1\n", b"2\n"]
    taken(process).close()
    assert (process.wait(), stdout_of(process).read()) == (0, b"")
    assert counts(shell)["committed"] == 2


def test_what_is_asked_for_by_number_does_not_wait_for_its_reader(shell: Shell) -> None:
    shell.run("push", "mail", stdin=b"1\n2\n3\n")
    process = shell.start("pop", "mail", "--max", "3")
    assert process.wait() == 0
    assert counts(shell)["committed"] == 3
    assert taken(process).read() == b"1\n2\n3\n"


def test_follow_ends_when_its_reader_does(shell: Shell) -> None:
    process = shell.start("pop", "mail", "--follow", stderr=subprocess.PIPE)
    shell.run("push", "mail", stdin=b"1\n")
    assert taken(process).readline() == b"1\n"
    taken(process).close()
    assert process.wait() == BROKEN_PIPE


@pytest.mark.parametrize("words", [("peek", "mail", "--raw", "--max", "300"), ("stats",)])
def test_a_reader_that_ends_early_causes_no_traceback(shell: Shell, words: tuple[str, ...]) -> None:
    shell.run("push", "mail", stdin=MANY)
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = shell.run(*words, stdout=writing, code=1)
    finally:
        os.close(writing)
    assert "Traceback" not in done.err


def test_a_file_gets_every_byte_before_the_ack(shell: Shell, tmp_path: Path) -> None:
    shell.run("push", "mail", stdin=MANY)
    with (tmp_path / "out").open("wb") as out:
        shell.run("pop", "mail", "--all", stdout=out)
    assert (tmp_path / "out").read_bytes() == MANY
    assert counts(shell)["committed"] == 300


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_what_could_not_be_written_is_given_back(shell: Shell) -> None:
    shell.run("push", "mail", stdin=b"1\n2\n")
    with open("/dev/full", "wb", buffering=0) as full:
        done = shell.run("pop", "mail", "--all", stdout=full, code=1)
    assert done.err == "error: No space left on device\n"
    assert counts(shell)["waiting"] == 2


def test_pushes_and_pops_side_by_side_lose_and_double_nothing(shell: Shell) -> None:
    pushes = [shell.start("push", "mail") for _ in range(3)]
    for number, process in enumerate(pushes):
        given(process).write(b"".join(b"%d-%d\n" % (number, n) for n in range(2000)))
        given(process).close()
    assert [process.wait() for process in pushes] == [0, 0, 0]
    pops = [shell.start("pop", "mail", "--all") for _ in range(2)]
    popped = [line for process in pops for line in taken(process).read().splitlines()]
    assert sorted(popped) == sorted(b"%d-%d" % (p, n) for p in range(3) for n in range(2000))
    assert shell.run("audit", "mail", "--json").json()["groups"]["default"]["committed"] == 6000


# --- signals and kills ----------------------------------------------------------------------


def test_what_a_killed_pop_had_not_acked_is_popped_again(shell: Shell) -> None:
    shell.run("queue", "update", "mail", "--claim-timeout", "0.5")
    process = popping(shell)
    process.kill()
    process.wait()
    shell.run("queue", "update", "mail", "--claim-timeout", "60")
    again: list[dict[str, Any]] = []

    def all_came() -> bool:  # --all ends before the claim of the first does
        again.extend(shell.run("pop", "mail", "--all", "--json").json_lines())
        return len(again) >= len(LINES)

    eventually("what was claimed comes again", all_came)
    assert sorted(message["payload"].encode() for message in again) == LINES
    attempts = {message["payload"].encode(): message["attempts"] for message in again}
    assert attempts.pop(LINES[0]) == 2, "it was claimed, and is not known to have been read"
    assert set(attempts.values()) == {1}


def test_a_stopped_pop_does_not_wait_for_its_reader(shell: Shell) -> None:
    process = popping(shell)
    process.terminate()
    assert process.wait() == 128 + signal.SIGTERM
    assert b"given back: 1 message" in stdout_of(process).read()
    assert counts(shell)["waiting"] == 300


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_push_says_how_many_it_pushed(shell: Shell, signum: int) -> None:
    process = pushing(shell, b"whole")
    given(process).write(b"half a line")
    process.send_signal(signum)
    assert process.wait() == 128 + signum
    assert taken(process).read() == b"pushed 1 message to mail\n"
    assert shell.run("pop", "mail", "--all").out == b"whole\n"


def test_stats_are_watched_until_a_signal(shell: Shell) -> None:
    process = shell.start("stats", "--watch", "0.1", "mail", "--json")
    first = json.loads(taken(process).readline())
    shell.run("push", "mail", stdin=b"1\n")
    seen = first
    while not seen["queues"][0]["groups"]["default"]["waiting"]:
        before, seen = seen, json.loads(taken(process).readline())
        assert seen["at"] > before["at"]
    assert seen["queues"][0]["groups"]["default"]["waiting"] == 1
    process.send_signal(signal.SIGINT)
    assert process.wait() == 0


def test_watching_without_a_number_leaves_the_queue_its_name(shell: Shell) -> None:
    process = shell.start("stats", "--watch", "mail")
    assert b":" in taken(process).readline(), "the time"
    assert taken(process).readline() == b"\n"
    assert taken(process).readline().startswith(b"QUEUE")
    assert taken(process).readline().startswith(b"mail")
    process.terminate()
    assert process.wait() == 0


@pytest.mark.embedded_only(reason="it limits the size of files")
def test_storage_that_fails_ends_with_75(shell: Shell) -> None:
    def no_large_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    done = shell.run("push", "mail", stdin=MANY * 10, preexec_fn=no_large_files, code=75)
    assert done.err.startswith("error: ")
    assert "had been pushed" in done.err


# --- the reaper -----------------------------------------------------------------------------

# Nobody waits so long: a reap that watched a pipe for its lease would not end in time.
FOREVER = "3600"


def killed_pusher(shell: Shell) -> None:
    process = pushing(shell, b"1")
    process.kill()
    process.wait()


def test_a_reap_with_nothing_to_do_returns_at_once(shell: Shell) -> None:
    shell.run("queue", "update", "mail", "--lease", FOREVER)
    assert shell.run("reap").out == b"nothing to do\n"
    assert shell.run("reap", "--json").json() == {"actions": []}


@pytest.mark.embedded_only(reason="only a lock of the kernel tells that its holder died")
def test_the_pipe_of_a_killed_pusher_is_sealed_at_once(shell: Shell) -> None:
    shell.run("queue", "update", "mail", "--lease", FOREVER)
    killed_pusher(shell)
    (planned,) = shell.run("reap", "--dry-run", "--json").json()["actions"]
    assert (planned["verb"], planned["outcome"]) == ("seal", "planned")
    assert shell.run("stats", "mail", "--json").json()["pipes"]["sealed"] == 0
    (sealed,) = shell.run("reap", "--queue", "mail", "--json").json()["actions"]
    assert sealed == {**planned, "outcome": "done", "detail": "at seq 1"}
    assert shell.run("stats", "mail", "--json").json()["pipes"]["sealed"] == 1


@pytest.mark.waits(reason="leases of processes run out")
def test_the_pipe_of_a_stopped_pusher_is_sealed_after_its_lease(shell: Shell) -> None:
    shell.run("queue", "update", "mail", "--lease", "1")
    process = pushing(shell, b"before")
    process.send_signal(signal.SIGSTOP)
    assert b"seal" in shell.run("reap").out
    process.send_signal(signal.SIGCONT)
    given(process).write(b"after\n")
    given(process).close()
    assert process.wait() == 0
    assert shell.run("pop", "mail", "--all").out == b"before\nafter\n"


@pytest.mark.waits(reason="leases of processes run out")
def test_the_pipe_of_a_living_pusher_is_left_to_it(shell: Shell) -> None:
    shell.run("queue", "update", "mail", "--lease", "6")
    process = pushing(shell, b"1")
    assert shell.run("reap").out == b"nothing to do\n"
    given(process).write(b"2\n")
    given(process).close()
    assert process.wait() == 0
    assert sum(shell.run("stats", "mail", "--json").json()["pipes"].values()) == 1


def test_a_reap_that_watches_ends_at_a_signal(shell: Shell) -> None:
    shell.run("queue", "update", "mail", "--lease", FOREVER)
    pusher = pushing(shell, b"1")
    pusher.send_signal(signal.SIGSTOP)
    with terminal() as (ours, theirs):
        process = shell.start("reap", stderr=theirs)
        assert b"watching 1 pipe for signs of life" in os.read(ours, 4096)
        process.terminate()
        assert process.wait() == 128 + signal.SIGTERM
    pusher.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_reaper_as_a_daemon_works_until_a_signal(shell: Shell, signum: int) -> None:
    process = shell.start("reap", "--every", "100ms", "--json", stderr=subprocess.PIPE)
    assert stdout_of(process).readline().startswith(b"a pass every 0.1 s")
    killed_pusher(shell)
    (action,) = json.loads(taken(process).readline())["actions"]
    assert (action["verb"], action["queue"], action["outcome"]) == ("seal", "mail", "done")
    process.send_signal(signum)
    assert process.wait() == 0


@pytest.mark.waits(reason="leases of processes run out")
def test_rollback_frees_what_a_killed_popper_held(shell: Shell) -> None:
    # Its own reaper must not be first: it may be killed late.
    shell.run("queue", "update", "mail", "--claim-timeout", "4")
    popper = popping(shell)
    popper.kill()
    popper.wait()
    process = shell.start("rollback", "--every", "0.1", "--json", stderr=subprocess.DEVNULL)
    (action,) = json.loads(taken(process).readline())["actions"]
    assert (action["verb"], action["outcome"]) == ("rollback", "done")
    assert counts(shell)["waiting"] == 300
    process.terminate()
    assert process.wait() == 0


# --- terminals ------------------------------------------------------------------------------


def test_progress_is_shown_on_a_terminal_alone(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(MANY * 10)
    assert shell.run("push", "mail", "lines").err == ""
    with terminal() as (ours, theirs):
        done = shell.start("push", "mail", "lines", stderr=theirs)
        assert done.wait() == 0
        assert taken(done).read() == b"pushed 3,000 messages to mail\n"
        bar = shown(ours, theirs)
    assert "%" in bar
    assert "[#" in bar
    assert bar.endswith("\r\x1b[K"), "the line is cleared at the end"


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"\n", 1), (b"y\n", 0)])
def test_deleting_asks_on_a_terminal(shell: Shell, answer: bytes, code: int) -> None:
    shell.run("push", "mail", stdin=b"1\n2\n")
    with terminal() as (ours, theirs):
        os.write(ours, answer)
        process = shell.start("queue", "delete", "mail", stdin=theirs, stderr=theirs)
        assert process.wait() == code
        asked = shown(ours, theirs)
    assert "Delete mail, with 2 messages that some group has not committed?" in asked
    left = [queue["name"] for queue in shell.run("queue", "list", "--json").json()]
    assert left == (["mail"] if code else [])


@pytest.mark.needs("bash")
def test_bash_takes_the_completion(shell: Shell) -> None:
    (shell.directory / "script").write_bytes(shell.run("completion", "bash").out)
    done = subprocess.run(
        ["bash", "-c", "source ./script && complete -p cassq"],
        cwd=shell.directory,
        stdout=subprocess.PIPE,
        check=True,
    )
    assert done.stdout.endswith(b" cassq\n")


@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_other_shells_have_a_completion_of_their_own(shell: Shell, name: str) -> None:
    script = shell.run("completion", name, "--json").json()["script"]
    assert f"_CASSQ_COMPLETE={name}_complete" in script


@pytest.mark.parametrize(
    ("words", "number", "expected"),
    [
        ("cassq qu", 1, b"plain,queue"),
        ("cassq queue up", 2, b"plain,update"),
        ("cassq pop m", 2, b"plain,mail"),
        ("cassq pop mail --fo", 3, b"plain,--follow"),
        ("cassq pop --url file:nowhere m", 4, b""),
    ],
)
def test_commands_options_and_queues_are_completed(
    shell: Shell, words: str, number: int, expected: bytes
) -> None:
    environment = {
        "_CASSQ_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(number),
    }
    assert shell.run(environment=environment).out.strip() == expected
    assert not (shell.directory / "nowhere").exists()
