"""Spark's Pythons on a busy machine: one may take longer to start than the ten seconds that Spark
waits for it, which no setting changes. What failed by that is done again."""

from __future__ import annotations

from collections.abc import Callable

NOT_STARTED = "worker failed to connect back"
TRIES = 5


def at_last(act: Callable[[], object]) -> None:
    """Do something with a stream, which goes on where it was when it is started again."""
    from pyspark.errors import PySparkException

    for _ in range(TRIES):
        try:
            act()
        except PySparkException as exc:
            if NOT_STARTED not in str(exc):
                raise
        else:
            return
    raise AssertionError("no Python of Spark's started in time")
