"""Folders wherever Spark can write (local disks, HDFS, object stores), through Hadoop's API."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


class Folder:
    """A path, which need not exist. Errors are Spark's: see `translated_errors`."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self.path: str = path.rstrip("/") or "/"
        self._jvm: Any = spark._jvm
        self._at = self._jvm.org.apache.hadoop.fs.Path(self.path)
        java: Any = spark._jsc
        self._files = self._at.getFileSystem(java.hadoopConfiguration())

    def __truediv__(self, name: str) -> Folder:
        return Folder(self._spark, f"{self.path}/{name}")

    def exists(self) -> bool:
        return bool(self._files.exists(self._at))

    def names(self) -> list[str]:
        """The names of its entries, sorted."""
        return sorted(str(each.getPath().getName()) for each in self._files.listStatus(self._at))

    def sizes(self) -> dict[str, int]:
        """The bytes of its files, by their names."""
        found = self._files.listStatus(self._at)
        return {str(each.getPath().getName()): int(each.getLen()) for each in found}

    def remove(self) -> None:
        """Remove it with all its content; not an error if it does not exist."""
        self._files.delete(self._at, True)

    def move_to(self, target: Folder) -> bool:
        """Rename it; `target` must not exist. False if that failed. Atomic on local disks and HDFS,
        file by file on object stores."""
        self._files.mkdirs(target._at.getParent())
        return bool(self._files.rename(self._at, target._at))

    def touch(self) -> None:
        """Make an empty file here."""
        self._files.create(self._at, True).close()

    def write(self, text: str) -> None:
        """Make a file with this text here."""
        stream = self._files.create(self._at, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def text(self) -> str:
        """The text of the file here."""
        stream = self._files.open(self._at)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()
