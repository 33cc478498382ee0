"""A Spark session for a measurement: two tasks at once, in this process and a JVM of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.servers.server import LOG_TAIL_CHARS, ServerFailedError

MASTER = "local[2]"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # For five million rows that are kept in memory.
    "spark.driver.memory": "4g",
}


@contextmanager
def session(directory: Path, jars: Sequence[Path] = ()) -> Iterator[Any]:
    """A session that has its files below `directory`; all its processes end with it."""
    from pyspark.sql import SparkSession

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # The JVM tells of all kinds of things; what matters comes back as an exception.
    log_path = directory / "spark.log"
    with log_path.open("wb") as log:
        os.dup2(log.fileno(), 2)
    builder = SparkSession.builder.master(MASTER).appName("the comparison")
    settings = {
        **SETTINGS,
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        **({"spark.jars": ",".join(map(str, jars))} if jars else {}),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:
        raise ServerFailedError(
            f"Spark did not start: {log_path.read_text()[-LOG_TAIL_CHARS:]}"
        ) from error
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()
