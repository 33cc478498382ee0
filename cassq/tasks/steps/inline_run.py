"""Steps of a task that is called as a function, or runs inline in a test: nothing is recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cassq.base.clock import SystemClock
from cassq.tasks.steps.context import Context

# The signals that tasks find, by name.
_signals: list[Mapping[str, Any]] = []


@contextmanager
def signalled(signals: Mapping[str, Any]) -> Iterator[None]:
    """Inside, waits of tasks that run inline return these values, by name."""
    _signals.append(signals)
    try:
        yield
    finally:
        _signals.remove(signals)


class InlineRun:
    """Calls each step, ends each sleep at once, and gives each wait the signal from the test, or
    None. Methods: see `cassq.tasks.steps.context.RunRecords`."""

    def come_to(self, _kind: str, name: str) -> tuple[str, int]:
        return name, 0

    def find(self, _label: str) -> tuple[Any] | None:
        return None

    def returned(self, _label: str, _at: int, _began_ms: int, value: object) -> Any:
        return value

    def raised(self, _label: str) -> None:
        """Nothing: the error is passed on."""

    def now_ms(self) -> int:
        return SystemClock().wall_ms()

    def sleep(self, _label: str, _at: int, _seconds: float) -> None:
        """It is over."""

    def wait(self, _label: str, _at: int, name: str, _seconds: float) -> Any:
        return next((given[name] for given in reversed(_signals) if name in given), None)


def inline_context(task: str) -> Context:
    """The context of a task that runs where it is called."""
    return Context(task, 1, None, InlineRun())
