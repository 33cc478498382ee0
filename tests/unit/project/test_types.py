"""What type checkers see of cassq: every setting, every choice, and no name that is not there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from cassq.model.queues import GroupPolicy, QueuePolicy
from cassq.settings import GroupSettings, QueueSettings

ROOT = Path(__file__).resolve().parents[3]
COMPLETENESS_MIN = 0.99

# Each line that ends in a comment is wrong, and is to be found; all others are right.
SMALL_FILE = """\
import cassq
from cassq.tasks import App, Context

app = App("file:queues")

@app.task
def add(one: int, two: int = 2) -> int:
    return one + two

@app.task(results=True)
async def greet(ctx: Context, name: str) -> list[str]:
    length: int = await ctx.step_async("add", add_soon, 3)
    return [name] * ctx.step("length", len, name)

async def add_soon(one: int) -> int:
    again: int = (await add.push_async(one)).result()
    names: list[str] = await (await greet.push_async("Ann")).result_async()
    return again

total: int = add.push(1, two=3).result()
names: list[str] = greet.push("Ann").result()
many: list[str] = greet.push_many([("Ann",)])[0].result()

client = cassq.connect("file:queues", durability="os")
queue = client.create_queue("a", claim_timeout=3, overflow="drop-oldest", retry_schedule=[1, 10])
queue.update(max_length=None, alert_oldest_age=60)
queue.create_group("b", start="now", exclusive=True, claim_timeout=None)
queue.update_group("b", sick_check=False)
queue.peek(3, state="dead")
queue.history(step="hour")
queue.dead_letters().peek(reason="rejected")
with queue.pusher() as pusher:
    ids = pusher.push_many([b"x", b"y"])
    listed: list[str] = list(ids)
    inferred = list(ids)
    listed = inferred
    listed = ids[1:]
    spilled: bool = ids[0].spilled
with queue.popper() as popper:
    for message in popper.pop(3):
        payload: bytes = message.payload

add.push("one")  # wrong
add.push(1, three=3)  # wrong
greet.push("Ann", 3)  # wrong
text: str = add.push(1).result()  # wrong
one_name: str = greet.push("Ann").result()  # wrong
client.create_queue("a", claim_timeot=3)  # wrong
client.create_queue("a", claim_timeout="3s")  # wrong
client.create_queue("a", consistency="app")  # wrong
client.create_queue("a", compression="gzip")  # wrong
queue.update(max_lenght=3)  # wrong
queue.update(overflow="drop")  # wrong
queue.create_group("b", sick_chek=True)  # wrong
queue.create_group("b", start="end")  # wrong
queue.create_group("b", max_length=3)  # wrong
queue.update_group("b", exclusiv=True)  # wrong
queue.peek(state="lost")  # wrong
queue.history(step="week")  # wrong
queue.dead_letters().peek(reason="rejectd")  # wrong
cassq.connect("file:queues", durability="disc")  # wrong
cassq.typo  # wrong
"""
WRONG = {n for n, line in enumerate(SMALL_FILE.splitlines(), 1) if line.endswith("# wrong")}


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # With --verifytypes Pyright takes packages from the first Python of PATH, not the one given.
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [str(word) for word in words],
        cwd=ROOT,
        env={**os.environ, "PATH": programs, "PYTHONPATH": path, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("typed") / "small.py"
    path.write_text(SMALL_FILE)
    return path


@pytest.fixture(scope="module")
def pyright() -> tuple[str, ...]:
    """Pyright as the environment has it: basedpyright brings the Node.js that it runs on."""
    own = Path(sys.executable).parent
    for name in ("basedpyright", "pyright"):
        found = shutil.which(name, path=f"{own}{os.pathsep}{os.environ['PATH']}")
        if found is not None:
            return (found, "--pythonpath", sys.executable)
    pytest.skip("neither basedpyright nor pyright is installed: run ./dev setup")


# --- one source of truth --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "settings"), [(QueuePolicy, QueueSettings), (GroupPolicy, GroupSettings)]
)
def test_the_settings_are_those_of_the_policy_by_name_and_type(policy: Any, settings: Any) -> None:
    kept, taken = get_type_hints(policy), get_type_hints(settings)
    assert list(taken) == [field.name for field in fields(policy)]
    looser = {
        tuple[float, ...]: Sequence[float],
        tuple[float, ...] | None: Sequence[float] | None,
    }
    for name, kind in kept.items():
        assert taken[name] == looser.get(kind, kind), name


# --- what checkers find ---------------------------------------------------------------------


def test_mypy_finds_each_wrong_setting_choice_and_name_and_nothing_else(small_file: Path) -> None:
    done = run(sys.executable, "-m", "mypy", "--strict", small_file)
    lines = re.findall(rf"{small_file.name}:(\d+): error", done.stdout)
    assert {int(line) for line in lines} == WRONG, done.stdout + done.stderr


def test_pyright_finds_each_wrong_setting_choice_and_name_and_nothing_else(
    small_file: Path, pyright: tuple[str, ...]
) -> None:
    done = run(*pyright, "--outputjson", small_file)
    report = json.loads(done.stdout)["generalDiagnostics"]
    lines = {each["range"]["start"]["line"] + 1 for each in report if each["severity"] == "error"}
    assert lines == WRONG, done.stdout


@pytest.mark.long(reason="pyright looks at all that is public; it finds wrong calls in the gate")
def test_what_is_public_has_types(pyright: tuple[str, ...]) -> None:
    done = run(*pyright, "--verifytypes", "cassq", "--ignoreexternal", "--outputjson")
    report = json.loads(done.stdout)["typeCompleteness"]
    assert report["exportedSymbolCounts"]["withKnownType"] > 3000
    assert report["completenessScore"] >= COMPLETENESS_MIN, _unknown(report)


def _unknown(report: dict[str, Any]) -> str:
    """The names whose types are not known, and why."""
    lines = [
        f"{symbol['name']}: {'; '.join(each['message'] for each in symbol['diagnostics'])}"
        for symbol in report["symbols"]
        if symbol["isExported"] and symbol["diagnostics"]
    ]
    return "\n".join(lines[:100])
