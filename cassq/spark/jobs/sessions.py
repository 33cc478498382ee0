"""Spark sessions for `cassq spark`, and the translation of Spark's errors into cassq's own."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import SparkSession

import cassq.spark
from cassq.errors import BackendError, ConfigError

# The last line of a worker's traceback, which says what it died of.
_DIED_OF = re.compile(r"^(?:[a-z_]+\.)*(\w+(?:Error|Exception): .*)$", re.MULTILINE)
_OF_A_SOURCE = "PYTHON_DATA_SOURCE"
_QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}


@contextmanager
def session(name: str, master: str | None, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """The session that runs in this process, or a new one, which is stopped at the end. master:
    None for the configured one or, without one, `local[*]`.
    """
    with translated_errors():
        running = SparkSession.getActiveSession()
        spark = running or _begun(name, master, settings)
        cassq.spark.register(spark)
    try:
        yield spark
    finally:
        if running is None:
            spark.stop()


def _begun(name: str, master: str | None, settings: Mapping[str, str]) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in {**_QUIET, **settings}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


@contextmanager
def translated_errors() -> Iterator[None]:
    """Translate Spark's errors: to ConfigError if it rejects a call, otherwise to BackendError."""
    try:
        yield
    except (AnalysisException, ParseException) as exc:
        if _OF_A_SOURCE in str(exc):  # Spark's name for any failure while it plans
            raise BackendError(f"Spark failed: {what_failed(str(exc))}", retryable=False) from exc
        raise ConfigError(f"Spark: {first_line(str(exc))}") from exc
    except (PySparkException, Py4JError) as exc:
        raise BackendError(f"Spark failed: {what_failed(str(exc))}", retryable=False) from exc


def what_failed(text: str) -> str:
    """The most informative line of a long error. Pure."""
    found = _DIED_OF.findall(text)
    return str(found[-1]) if found else first_line(text)


def first_line(text: str) -> str:
    """The first line that is not blank. Pure."""
    return next(
        (line.strip() for line in text.splitlines() if line.strip()), "Spark gave no reason"
    )
