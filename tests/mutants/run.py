"""Running the tests of a mutant against a copy of the tree that has its bug."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

from cassq.base.clock import Stopwatch
from tests.mutants.mutant import COPIED, TREE, Mutant, PatchError, Simulated

# A test that hangs ends its run, and has seen the bug. Without a bug none hangs; some take long on
# a busy machine.
HANG_SECONDS, SLOW_SECONDS = 120, 900
RUN_SECONDS = 300.0
BASELINE_SECONDS = 3600.0
PASSED, FAILED = 0, 1

CAUGHT, SURVIVED, SKIPPED, BROKEN = "caught", "SURVIVED", "skipped", "BROKEN"


class Verdict(NamedTuple):
    """What became of a mutant. told: what its tests printed, where that is of use."""

    mutant: Mutant | Simulated
    result: str
    seconds: float
    output: str = ""

    @property
    def is_good(self) -> bool:
        return self.result in (CAUGHT, SKIPPED)


class Copy:
    """A copy of the tree, for one mutant after another."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc", "cassq-data")
        for name in COPIED:
            source, target = TREE / name, directory / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=ignored)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)

    def judge(self, mutant: Mutant | Simulated) -> Verdict:
        """Plant a bug, run its tests, and take it out again."""
        watch = Stopwatch()
        if isinstance(mutant, Simulated):
            code, output = self.pytest(mutant.arguments())
            result = {PASSED: CAUGHT, FAILED: SURVIVED}.get(code, BROKEN)
            return Verdict(mutant, result, watch.seconds(), output)
        path = self._directory / mutant.place
        before = path.read_text()
        try:
            path.write_text(mutant.patched(before))
        except PatchError as exc:
            return Verdict(mutant, BROKEN, watch.seconds(), str(exc))
        try:
            self._forget(path)
            code, output = self.pytest(mutant.arguments())
        finally:
            path.write_text(before)
            self._forget(path)
        return Verdict(mutant, _result(code, output), watch.seconds(), output)

    def _forget(self, path: Path) -> None:
        """The module's compiled form: of the same size and second it would be taken for new."""
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()

    def pytest(self, arguments: Sequence[str], seconds: float = RUN_SECONDS) -> tuple[int, str]:
        """Run tests, up to the first that fails; the exit code, and what was printed."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=line"]
        command += ["-p", "no:cacheprovider", "-m", "not servers"]
        hang_seconds = HANG_SECONDS if seconds < BASELINE_SECONDS else SLOW_SECONDS
        command += ["-o", f"faulthandler_timeout={hang_seconds}", *arguments]
        environment = os.environ | {"PYTHONPATH": str(self._directory)}
        process = subprocess.Popen(
            command,
            cwd=self._directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return FAILED, f"{output}\nit took longer than {seconds:.0f} s"
        return process.returncode, output

    def where_cassq_is(self) -> Path:
        """Which package a test of this copy would import."""
        output = subprocess.run(
            [sys.executable, "-c", "import cassq; print(cassq.__file__)"],
            cwd=self._directory,
            env=os.environ | {"PYTHONPATH": str(self._directory)},
            capture_output=True,
            text=True,
            check=True,
        )
        return Path(output.stdout.strip())


def _result(code: int, output: str) -> str:
    """What an exit code of pytest says of a mutant."""
    if code == FAILED:
        return CAUGHT
    if code != PASSED:
        return BROKEN  # no tests, or they cannot even be imported
    last = output.strip().splitlines()[-1] if output.strip() else ""
    return SKIPPED if "skipped" in last and "passed" not in last else SURVIVED


def baseline(copies: Sequence[Copy], mutants: Sequence[Mutant | Simulated]) -> str:
    """Run all tests that should see source mutants, without any bug, in these copies side by side:
    what was printed where one failed, or "". They have to pass."""
    chosen = {tuple(m.arguments()) for m in mutants if isinstance(m, Mutant)}
    whole = sorted({file for each in chosen if "-k" not in each for file in each})
    parts = [whole[number :: len(copies)] for number in range(len(copies))]
    runs = SimpleQueue[list[str]]()
    for run in (*parts, *sorted(list(each) for each in chosen if "-k" in each)):
        if run:
            runs.put(run)
    failed: list[str] = []

    def work(copy: Copy) -> None:
        with suppress(Empty):
            while True:
                code, output = copy.pytest(runs.get_nowait(), BASELINE_SECONDS)
                failed.extend([output] if code != PASSED else [])

    with ThreadPoolExecutor(len(copies)) as pool:
        list(pool.map(work, copies))
    return "\n".join(failed)
