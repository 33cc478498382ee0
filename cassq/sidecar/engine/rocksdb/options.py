"""The options of RocksDB in a sidecar, and the reasons for them.

The log is opened in the mode `point_in_time`. What each mode does with a log, by experiment:

=================================  ====================  ==========================  ==============
mode                               torn in its last      a record damaged before     a log file
                                   record                the last                    removed
=================================  ====================  ==========================  ==============
absolute_consistency               does not open         does not open               quietly shorter
tolerate_corrupted_tail_records    without that record   does not open               quietly shorter
point_in_time                      without that record   quietly shorter: it ends    quietly shorter
                                                         before the record
skip_any_corrupted_record          without that record   quietly full of holes       quietly shorter
=================================  ====================  ==========================  ==============

A kill tears the log, so the first mode would need a person each time. The second loses all replicas
for one bad byte. `point_in_time` leaves a gapless beginning of each replica; the marks show which
lost synced data (`cassq.sidecar.engine.rocksdb.marks`), and only those are copied again.

Also tried, measured in CPU seconds for frames of 1 MB: syncing files as they grow
(`bytes_per_sync`, `wal_bytes_per_sync`), larger arenas and larger memtables made no difference
beyond noise; blob files cost a third more. The log itself costs most, 1.1 s per GB for its
checksums alone: rocksdict's RocksDB is built without the CPU's instruction for CRC-32C. Log files
are not recycled, because recovery could read their old content.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
)

MEMTABLES = 4
L0_FILES = 20


@dataclass(frozen=True, slots=True)
class Tuning:
    """Sizes, for all replicas of a directory together.

    cache_bytes: of the block cache. memtable_bytes: of each of a few write buffers. statistics:
    whether RocksDB collects statistics, which costs some percent of its time.
    """

    cache_bytes: int = 128 << 20
    memtable_bytes: int = 64 << 20
    statistics: bool = False


def takes_direct_io(directory: Path) -> bool:
    """Whether the disk of a directory supports direct I/O; file systems in memory may not."""
    direct = getattr(os, "O_DIRECT", 0)
    place = directory / "direct"
    try:
        os.close(os.open(place, os.O_RDWR | os.O_CREAT | direct, 0o644))
    except OSError:
        return False
    finally:
        place.unlink(missing_ok=True)
    return bool(direct)


def options(tuning: Tuning, *, create: bool, direct: bool = False, merges: bool = True) -> Options:
    """The options of the one database of a data directory. direct: its disk supports direct I/O.
    merges: whether RocksDB merges tables by itself."""
    chosen = Options(raw_mode=True)
    chosen.create_if_missing(create)
    chosen.create_missing_column_families(create)
    chosen.set_error_if_exists(create)
    chosen.set_atomic_flush(True)
    chosen.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    chosen.set_paranoid_checks(True)
    # Frames may be compressed already.
    chosen.set_compression_type(DBCompressionType.none())
    chosen.set_write_buffer_size(tuning.memtable_bytes)
    chosen.set_max_write_buffer_number(MEMTABLES)
    chosen.set_target_file_size_base(tuning.memtable_bytes)
    # Most messages are consumed and dropped soon, so merging them earlier is wasted. With frames of
    # 1 MB, each dropped after some seconds, this writes 2.7 bytes per byte instead of 2.95.
    chosen.set_level_zero_file_num_compaction_trigger(L0_FILES)
    chosen.set_level_zero_slowdown_writes_trigger(3 * L0_FILES)
    chosen.set_level_zero_stop_writes_trigger(5 * L0_FILES)
    # Tables are rarely read back soon: writing them past the page cache costs 40 % less system
    # time in all (1.7 s per GB instead of 2.9). The log stays in the page cache.
    chosen.set_use_direct_io_for_flush_and_compaction(direct)
    chosen.set_disable_auto_compactions(not merges)
    chosen.set_max_background_jobs(2)
    chosen.set_keep_log_file_num(2)
    chosen.set_max_log_file_size(4 << 20)
    chosen.set_max_open_files(512)
    if tuning.statistics:
        chosen.enable_statistics()
    table = BlockBasedOptions()
    table.set_block_cache(Cache(tuning.cache_bytes))
    table.set_cache_index_and_filter_blocks(True)
    table.set_block_size(16 << 10)
    chosen.set_block_based_table_factory(table)
    return chosen
