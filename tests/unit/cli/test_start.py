"""The command's start: what it loads for what it is asked, and what Ctrl-C does meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MOMENTS = 24

# What takes long to load, or belongs to what `--version` and `--help` do not need.
SLOW = {
    *("asyncio", "concurrent.futures", "email", "http", "importlib.metadata", "json", "logging"),
    *("multiprocessing", "socket", "sqlite3", "ssl", "urllib.parse", "urllib.request", "xxhash"),
    *(
        "cassq.catalog",
        "cassq.client.client",
        "cassq.client.connecting",
        "cassq.extents",
        "cassq.model.queues",
    ),
    *("cassq.cli.ui.output", "cassq.cli.queues.pop", "cassq.cli.ops.sidecar"),
}

# Ends, as Ctrl-C does, at the n-th step that the interpreter tells of between the beginning of the
# command and its first look at the catalog; 0: at none, and says how many there were.
AT_A_STEP = """
import os, signal, sys
from cassq.cli.start import main

moment, steps = int(sys.argv.pop(1)), 0

def hook(event, _):
    global steps
    if steps < 0 or event not in ("import", "open", "exec", "sqlite3.connect"):
        return
    steps += 1
    if steps == moment:
        os.kill(os.getpid(), signal.SIGINT)
    if event == "sqlite3.connect":
        if moment == 0:
            print("steps:", steps, file=sys.stderr)
        steps = -1

sys.addaudithook(hook)
main()
"""


# Runs what follows, and tells at the end what the interpreter did not have at its start.
TELLING = """
import sys; before = set(sys.modules)
import atexit; atexit.register(lambda: print(*set(sys.modules) - before, file=sys.stderr))
{}
"""
COMMAND = "from cassq.cli.start import main; main()"


def loaded_by(code: str, *words: str, **env: str) -> set[str]:
    """The modules that a process has loaded when it ends."""
    done = _run("-c", TELLING.format(code), *words, **env)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


def _run(
    *words: str, cwd: Path = ROOT, preexec: Callable[[], object] | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": paths, **env},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=preexec,
    )


# --- what is loaded -------------------------------------------------------------------------


def test_the_version_is_printed_before_click_or_anything_slow_is_loaded() -> None:
    loaded = loaded_by(COMMAND, "--version")
    assert "cassq.cli.start" in loaded
    assert loaded & {*SLOW, "click", "typing", "cassq.cli.main", "cassq.errors"} == set()


def test_the_help_loads_no_command_and_nothing_slow() -> None:
    loaded = loaded_by(COMMAND, "--help")
    assert "click" in loaded
    assert loaded & SLOW == set()
    assert not [name for name in loaded if name.startswith("cassq.catalog")]


def test_the_names_of_commands_are_completed_without_loading_them() -> None:
    words = {"_CASSQ_COMPLETE": "bash_complete", "COMP_WORDS": "cassq re", "COMP_CWORD": "1"}
    assert _run("-m", "cassq", **words).stdout.splitlines() == ["plain,reap"]
    loaded = loaded_by(COMMAND, **words)
    assert "click.shell_completion" in loaded
    assert "cassq.client.client" not in loaded


def test_a_command_loads_no_other() -> None:
    loaded = loaded_by(COMMAND, "queue", "--help")
    assert "cassq.cli.queues.queue" in loaded
    assert (
        loaded & {"cassq.cli.queues.pop", "cassq.cli.ops.stats", "cassq.cli.spark.commands"}
        == set()
    )


def test_what_a_command_loaded_is_not_searched_for_garbage_as_it_exits(tmp_path: Path) -> None:
    frozen = "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count() > 10_000)); "
    done = _run("-c", frozen + COMMAND, "--url", f"file:{tmp_path}", "queue", "create", "jobs")
    assert done.stdout.splitlines()[-1] == "True", done.stderr


def test_importing_cassq_loads_nothing_but_its_version() -> None:
    loaded = loaded_by("import cassq")
    assert {name for name in loaded if name.startswith("cassq")} == {"cassq", "cassq.version"}
    assert loaded & {*SLOW, "click", "typing", "re", "dataclasses"} == set()


def test_a_name_that_cassq_does_not_have_is_an_attribute_error() -> None:
    done = _run("-c", "import cassq; cassq.conect")
    assert "AttributeError: module 'cassq' has no attribute 'conect'" in done.stderr


# --- without a verb -------------------------------------------------------------------------


@pytest.mark.parametrize("words", [(), ("queue",), ("sidecar",)])
def test_without_a_verb_the_command_shows_its_help(words: tuple[str, ...]) -> None:
    bare, helped = _run("-m", "cassq", *words), _run("-m", "cassq", *words, "--help")
    assert (bare.returncode, bare.stderr) == (0, "")
    assert bare.stdout == helped.stdout
    assert "Commands:" in bare.stdout


# --- Ctrl-C ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which there is a queue."""
    directory = tmp_path_factory.mktemp("start")
    done = _run("-m", "cassq", "queue", "create", "mail", cwd=directory)
    assert done.returncode == 0, done.stderr
    return directory


def _interrupted(moment: int, place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    def heed() -> None:
        # Whoever started the tests may ignore it, as a shell's background jobs do.
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    return _run("-c", AT_A_STEP, str(moment), *words, cwd=place, preexec=heed)


@pytest.fixture(scope="module")
def steps(place: Path) -> int:
    """How many steps `cassq stats` takes before it looks at the catalog."""
    done = _interrupted(0, place, "stats")
    assert done.returncode == 0, done.stderr
    return int(done.stderr.removeprefix("steps: "))


def test_ctrl_c_at_any_step_of_the_start_writes_one_line(place: Path, steps: int) -> None:
    assert steps > 10 * MOMENTS
    for number in range(MOMENTS + 1):  # the first and the last step among them
        moment = 1 + number * (steps - 1) // MOMENTS
        done = _interrupted(moment, place, "stats")
        found = (done.returncode, done.stdout, done.stderr)
        assert found == (130, "", "error: interrupted\n"), f"step {moment} of {steps}"


def test_ctrl_c_is_reported_as_json_if_json_was_asked_for(place: Path, steps: int) -> None:
    for moment in (1, steps // 2, steps):
        done = _interrupted(moment, place, "stats", "--json")
        assert done.returncode == 130
        printed = json.loads(done.stderr)
        assert printed == {"error": "interrupted", "hint": "", "kind": "KeyboardInterrupt"}


def test_ctrl_c_that_the_parent_has_ignored_stays_ignored(place: Path, steps: int) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    code = str(steps // 2)
    done = _run("-c", AT_A_STEP, code, "stats", cwd=place, preexec=ignore)
    assert (done.returncode, done.stderr) == (0, "")
    assert "mail" in done.stdout


# --- the figure -----------------------------------------------------------------------------


def test_the_start_of_the_command_is_compared_with_that_of_bare_python() -> None:
    """The figure itself is measured at a quiet moment: `python -m bench.starting`."""
    done = _run("-m", "bench.starting", "--runs", "1", "--", sys.executable, "-c", "pass")
    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[1].strip() for line in done.stdout.splitlines()[2:]]
    assert rows == [
        f"{who}, {what}"
        for what in ("wall", "processor")
        for who in ("command", "bare Python", "difference")
    ]


def test_a_command_that_fails_is_not_measured() -> None:
    done = _run(
        "-m", "bench.starting", "--runs", "1", "--", sys.executable, "-c", "raise SystemExit(3)"
    )
    assert done.returncode != 0
    assert "ended with status 3" in done.stderr
