"""What may have something to do, in SQLite: candidates for the reaper, over all queues at once."""

from __future__ import annotations

import json
from collections.abc import Collection

from cassq.catalog.port import Catalog
from cassq.catalog.sqlite.claim_tables import CLAIM_COLUMNS, claim_row
from cassq.catalog.sqlite.database import Database
from cassq.catalog.sqlite.pipe_tables import PIPE_COLUMNS, pipe_row
from cassq.catalog.sqlite.queue_tables import GROUP_COLUMNS, QUEUE_COLUMNS, group_row, queue_row
from cassq.model.rows import Claim, GroupRow, PipeRow, QueueRow

_GROUP = ", ".join(f"g.{name}" for name in GROUP_COLUMNS.split(", "))
_CHUNK = 1000  # pipes looked at in one statement, so that nobody waits long for the connection

# Pipes that may be written: a partial index that holds nothing else.
UNSEALED = f"SELECT {PIPE_COLUMNS} FROM pipes p WHERE p.state < 2 ORDER BY p.ordinal"
# The same of some queues: ranges of that index.
UNSEALED_OF = f"""
SELECT {PIPE_COLUMNS} FROM json_each(?1) q
CROSS JOIN pipes p INDEXED BY pipes_unsealed ON p.queue_id = q.value
WHERE p.state < 2 ORDER BY p.ordinal"""
# Whether a pipe `p` is sealed, and every group it is for has acked it: a key a group.
_FINISHED = """
p.state = 2 AND EXISTS (SELECT 1 FROM groups g WHERE g.queue_id = p.queue_id)
AND NOT EXISTS (SELECT 1 FROM groups g LEFT JOIN cursors c ON c.group_id = g.id AND c.pipe_id = p.id
    WHERE g.queue_id = p.queue_id AND p.group_id IN ('', g.id)
    AND coalesce(c.ack_seq, 0) < p.end_seq)
ORDER BY p.ordinal"""
# A chunk of all pipes: a range of the key.
FINISHED = f"""
SELECT {PIPE_COLUMNS} FROM pipes p WHERE p.ordinal > ?1 AND p.ordinal <= ?2 AND {_FINISHED}"""
# Where a chunk ends.
CHUNK_END = """
SELECT max(ordinal) FROM (SELECT ordinal FROM pipes WHERE ordinal > ? ORDER BY ordinal LIMIT ?)"""
# The same of some queues: ranges of the partial index of live pipes.
FINISHED_OF = f"""
SELECT {PIPE_COLUMNS} FROM json_each(?1) q
CROSS JOIN pipes p INDEXED BY pipes_live ON p.queue_id = q.value AND p.state < 3
WHERE {_FINISHED}"""
# Groups with something due: steps from group to group in the partial index of open claims.
DUE_GROUPS = f"""
WITH RECURSIVE holders (id) AS (
    SELECT min(group_id) FROM claims WHERE state < 2
    UNION ALL
    SELECT (SELECT min(group_id) FROM claims WHERE state < 2 AND group_id > holders.id)
    FROM holders WHERE holders.id IS NOT NULL)
SELECT {_GROUP} FROM holders CROSS JOIN groups g ON g.id = holders.id
WHERE (SELECT min(due_ms) FROM claims WHERE group_id = g.id AND state < 2) <= ?1
ORDER BY g.id"""
# The same of some queues: one step for each of their groups.
DUE_GROUPS_OF = f"""
SELECT {_GROUP} FROM json_each(?2) q CROSS JOIN groups g ON g.queue_id = q.value
WHERE (SELECT min(due_ms) FROM claims WHERE group_id = g.id AND state < 2) <= ?1
ORDER BY g.id"""
# What of a group is held too long or may be spent: a range of the partial index of open claims.
OVERDUE = f"""
SELECT {CLAIM_COLUMNS} FROM claims
WHERE group_id = ?1 AND due_ms <= ?2 AND state < 2
    AND (state = 0 OR deliveries >= ?3
        OR instr(failure, '"doomed":') OR instr(failure, '"moving":')
        OR instr(failure, '"leaving":'))
ORDER BY state, due_ms, pipe_id, start_seq LIMIT ?4"""

# Whether the rows of a cursor `c` overlap, or do not cover what lies between ack and chain: a range
# of their primary key.
_WEDGED = """
(coalesce((SELECT k.end_seq FROM claims k WHERE k.group_id = c.group_id AND k.pipe_id = c.pipe_id
    ORDER BY k.start_seq DESC LIMIT 1), c.ack_seq) <> c.chain_seq
OR EXISTS (SELECT 1 FROM (
    SELECT k.start_seq, k.end_seq, lag(k.end_seq) OVER (ORDER BY k.start_seq) AS last_seq
    FROM claims k WHERE k.group_id = c.group_id AND k.pipe_id = c.pipe_id) AS r
    WHERE r.end_seq <= r.start_seq OR r.start_seq <> coalesce(r.last_seq, c.ack_seq)))"""
# A chunk of all cursors: a range of the key. Those of retired pipes are gone.
WEDGED = f"""
SELECT c.group_id, c.pipe_id FROM cursors c
WHERE (c.group_id, c.pipe_id) > (?1, ?2) AND (c.group_id, c.pipe_id) <= (?3, ?4) AND {_WEDGED}"""
# Where a chunk ends.
CURSORS_END = """
SELECT group_id, pipe_id FROM (SELECT group_id, pipe_id FROM cursors
    WHERE (group_id, pipe_id) > (?1, ?2) ORDER BY group_id, pipe_id LIMIT ?3)
ORDER BY group_id DESC, pipe_id DESC LIMIT 1"""
# The same of some queues: ranges of the key, one for each of their groups.
WEDGED_OF = f"""
SELECT c.group_id, c.pipe_id FROM json_each(?1) q CROSS JOIN groups g ON g.queue_id = q.value
CROSS JOIN cursors c ON c.group_id = g.id WHERE {_WEDGED}"""

# Queues with limits: their partial index. The condition is the index's, word for word.
LIMITED = f"""
SELECT {QUEUE_COLUMNS} FROM queues INDEXED BY queues_limited WHERE deleted = 0 AND (
    json_extract(policy, '$.message_ttl') IS NOT NULL
    OR json_extract(policy, '$.retain_unconsumed') IS NOT NULL
    OR json_extract(policy, '$.max_length') IS NOT NULL
    OR json_extract(policy, '$.dedup_window') > 0)"""
# Queues pushed to, and those with a wish: two partial indexes.
BUSY = """
SELECT DISTINCT queue_id FROM pipes INDEXED BY pipes_unsealed WHERE state < 2 AND rate > 0
UNION SELECT id FROM queues WHERE wished_pipes > 1 AND deleted = 0"""
# The compare-and-set of a wish: by key.
WISH = """
UPDATE queues SET wished_pipes = ?1, wished_ms = ?2
WHERE id = ?3 AND wished_pipes = ?4 AND wished_ms = ?5 AND deleted = 0"""
# Queues with live pipes: steps from queue to queue in the partial index of live pipes.
LIVE_QUEUES = """
WITH RECURSIVE found (id) AS (
    SELECT min(queue_id) FROM pipes WHERE state < 3
    UNION ALL
    SELECT (SELECT min(queue_id) FROM pipes WHERE state < 3 AND queue_id > found.id)
    FROM found WHERE found.id IS NOT NULL)
SELECT id FROM found WHERE id IS NOT NULL"""


class HintTables(Catalog):
    """The part of the catalog that knows where something may be to do."""

    _db: Database

    def unsealed_pipes(self, queue_ids: Collection[str] | None = None) -> list[PipeRow]:
        if queue_ids is None:
            rows = self._db.read(UNSEALED)
        else:
            rows = self._db.read(UNSEALED_OF, (json.dumps(list(queue_ids)),))
        return [pipe_row(row) for row in rows]

    def finished_pipes(self, queue_ids: Collection[str] | None = None) -> list[PipeRow]:
        if queue_ids is not None:
            rows = self._db.read(FINISHED_OF, (json.dumps(list(queue_ids)),))
            return [pipe_row(row) for row in rows]
        found: list[PipeRow] = []
        last = -1
        while True:
            ((end,),) = self._db.read(CHUNK_END, (last, _CHUNK))
            if end is None:
                return found
            found += [pipe_row(row) for row in self._db.read(FINISHED, (last, end))]
            last = end

    def due_groups(self, now_ms: int, queue_ids: Collection[str] | None = None) -> list[GroupRow]:
        if queue_ids is None:
            rows = self._db.read(DUE_GROUPS, (now_ms,))
        else:
            rows = self._db.read(DUE_GROUPS_OF, (now_ms, json.dumps(list(queue_ids))))
        return [group_row(row) for row in rows]

    def limited_queues(self, queue_ids: Collection[str] | None = None) -> list[QueueRow]:
        found = [queue_row(row) for row in self._db.read(LIMITED)]
        return [row for row in found if queue_ids is None or row.id in queue_ids]

    def busy_queues(self, queue_ids: Collection[str] | None = None) -> list[str]:
        found = [queue_id for (queue_id,) in self._db.read(BUSY)]
        return [each for each in found if queue_ids is None or each in queue_ids]

    def wish_pipes(self, queue: QueueRow, pipes: int, at_ms: int) -> bool:
        with self._db.lock, self._db.write(synced=False) as tx:
            values = (pipes, at_ms, queue.id, queue.wished_pipes, queue.wished_ms)
            return tx.execute(WISH, values).rowcount == 1

    def live_queues(self) -> list[str]:
        return [queue_id for (queue_id,) in self._db.read(LIVE_QUEUES)]

    def wedged(self, queue_ids: Collection[str] | None = None) -> list[tuple[str, str]]:
        if queue_ids is not None:
            rows = self._db.read(WEDGED_OF, (json.dumps(list(queue_ids)),))
            return [(group_id, pipe_id) for group_id, pipe_id in rows]
        found: list[tuple[str, str]] = []
        last = ("", "")
        while ends := self._db.read(CURSORS_END, (*last, _CHUNK)):
            end = (ends[0][0], ends[0][1])
            found += [(row[0], row[1]) for row in self._db.read(WEDGED, (*last, *end))]
            last = end
        return found

    def overdue(self, group_id: str, now_ms: int, deliveries: int, limit: int) -> list[Claim]:
        rows = self._db.read(OVERDUE, (group_id, now_ms, deliveries, limit))
        return [claim_row(row) for row in rows]
