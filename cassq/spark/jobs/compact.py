"""Compacting: moves the small files of an archive to a second directory, many pipes to a file.

An archive has a folder for each pipe. Small pipes go to *packs*, in a directory of their own,
because Spark takes the column `pipe` from the names of the archive's folders::

    INTO/queue=NAME/pack=pID/part-….parquet   columns of messages, `pipe` among them
    INTO/queue=NAME/pack=pID/_whole           the mark: a JSON list of the pack's pipes
    INTO/_staging/queue=NAME/…                of the current run, or of one that was killed

A pack is written, counted, moved to its place and marked. Only then are its pipes' files removed
from the archive; the marks beside them stay, so that the pipes are not archived again. A run first
cleans up what a killed run left: it removes packs without a mark, and removes the pipes of marked
packs from the archive.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from cassq.errors import BackendError, ConfigError
from cassq.spark.jobs.archive import STAGING, WHOLE, folder_name
from cassq.spark.jobs.folders import Folder
from cassq.spark.jobs.sessions import translated_errors
from cassq.spark.options import SCHEMA

FILE_BYTES = 128 * 1024 * 1024
PACK_BYTES = 1024 * 1024 * 1024
PACK_PIPES = 10_000
PIPES_LEAST = 100
PIPE, PACK = "pipe=", "pack=p"


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a run did. packs: how many it wrote; pipes, messages: how many it moved there. left:
    small pipes left for a later run. mended: pipes whose move a killed run had begun."""

    queue: str
    directory: str
    into: str
    packs: int
    pipes: int
    messages: int
    left: int
    mended: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compact(
    spark: SparkSession,
    queue: str,
    directory: str,
    into: str,
    *,
    pipes_least: int = PIPES_LEAST,
) -> Compacted:
    """Move the small pipes of a queue's archive to packs, each of up to 1 GiB or 10,000 pipes, in
    files of about 128 MiB.

    directory: the archive. into: another directory, for the packs. pipes_least: fewer small pipes
    than this are left for a later run if together they are smaller than a file. Only one run at a
    time may compact a queue of a directory; the archive may be written meanwhile.

    Raises ConfigError, and BackendError if a file cannot be read or written. Cost: each message of
    a small pipe is read twice and written once; some calls of the file system for each pipe.
    """
    if pipes_least < 2:
        raise ConfigError(f"pipes_least must be 2 or more, not {pipes_least}")
    with translated_errors():
        archive = Folder(spark, directory) / folder_name(queue)
        packs, staging = (
            Folder(spark, into) / folder_name(queue),
            Folder(spark, into) / STAGING / folder_name(queue),
        )
        if not archive.exists():
            raise ConfigError(f"nothing of queue {queue!r} is archived in {directory!r}")
        if packs.exists() and any(name.startswith(PIPE) for name in packs.names()):
            raise ConfigError(
                f"{into!r} is an archive itself",
                hint="name another directory for the packs: Spark takes the column `pipe` from the"
                " names of an archive's folders",
            )
        staging.remove()
        sizes = _sizes(archive)
        mended = [each for each in _packed(packs) if sizes.pop(each, 0)]
        for pipe_id in mended:
            _empty(archive, pipe_id)
        small = {pipe_id: size for pipe_id, size in sizes.items() if 0 < size < FILE_BYTES}
        moved = messages = made = 0
        try:
            for pipe_ids in plan(small, pipes_least):
                size = sum(small[each] for each in pipe_ids)
                messages += _pack(spark, archive, pipe_ids, size, staging, packs)
                moved += len(pipe_ids)
                made += 1
        finally:
            staging.remove()
    left = len(small) - moved
    return Compacted(queue, directory, into, made, moved, messages, left, len(mended))


def plan(sizes: Mapping[str, int], pipes_least: int) -> Iterator[list[str]]:
    """Distribute pipes to packs, by their sizes in bytes. The last pack is left out if it would
    have only one pipe, or fewer than `pipes_least` and be smaller than a file. Pure."""
    pack: list[str] = []
    size = 0
    for pipe_id in sorted(sizes):
        if size + sizes[pipe_id] > PACK_BYTES or len(pack) == PACK_PIPES:
            yield pack
            pack, size = [], 0
        pack.append(pipe_id)
        size += sizes[pipe_id]
    if len(pack) >= pipes_least or (len(pack) > 1 and size >= FILE_BYTES):
        yield pack


# --- what is there ------------------------------------------------------------------------------


def _sizes(archive: Folder) -> dict[str, int]:
    """The size in bytes of each complete pipe of an archive; 0 if it was moved to a pack."""
    found = {}
    for name in archive.names():
        if name.startswith(PIPE):
            files = (archive / name).sizes()
            if WHOLE in files:
                found[name.removeprefix(PIPE)] = sum(files.values()) - files[WHOLE]
    return found


def _packed(packs: Folder) -> list[str]:
    """The pipes of all complete packs; the others are removed."""
    found: list[str] = []
    names = packs.names() if packs.exists() else []
    for name in filter(lambda name: name.startswith(PACK), names):
        pipe_ids = pipes_of(packs / name)
        if pipe_ids is None:
            (packs / name).remove()
        else:
            found += pipe_ids
    return found


def pipes_of(pack: Folder) -> list[str] | None:
    """The pipes of a pack; None if it is not complete."""
    if not (pack / WHOLE).exists():
        return None
    try:
        return [str(each) for each in json.loads((pack / WHOLE).text())]
    except ValueError:
        return None  # its writer was killed


def _empty(archive: Folder, pipe_id: str) -> None:
    """Remove a pipe's files, but not its mark."""
    folder = archive / f"{PIPE}{pipe_id}"
    for name in folder.names():
        if name != WHOLE:
            (folder / name).remove()


# --- moving -------------------------------------------------------------------------------------


def _pack(
    spark: SparkSession,
    archive: Folder,
    pipe_ids: list[str],
    size: int,
    staging: Folder,
    packs: Folder,
) -> int:
    """Move pipes to a pack; returns how many messages."""
    paths = [(archive / f"{PIPE}{each}").path for each in pipe_ids]
    reader = spark.read.schema(SCHEMA).option("basePath", archive.path)
    found = reader.parquet(*paths)
    ordered = found.repartitionByRange(-(-size // FILE_BYTES), "pipe", "seq")
    ordered = ordered.sortWithinPartitions("pipe", "seq")
    ordered.write.mode("overwrite").parquet(staging.path)
    counts = _counts(found)
    staged = _counts(spark.read.schema(SCHEMA).parquet(staging.path))
    if staged != counts or counts.keys() != set(pipe_ids):
        raise BackendError(
            f"the pack of pipe {pipe_ids[0]} and others does not have the messages of the archive",
            hint="another run may be at work there; the archive is unchanged",
            retryable=False,
        )
    target = packs / f"{PACK}{pipe_ids[0]}"
    if not staging.move_to(target):
        raise BackendError(f"{staging.path} could not be moved to {target.path}", retryable=False)
    (target / WHOLE).write(json.dumps(pipe_ids))
    for pipe_id in pipe_ids:
        _empty(archive, pipe_id)
    return sum(counts.values())


def _counts(frame: DataFrame) -> dict[str, int]:
    return {row["pipe"]: row["count"] for row in frame.groupBy("pipe").count().collect()}
