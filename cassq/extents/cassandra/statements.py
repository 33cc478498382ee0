"""The statements of the Cassandra store, each with what keeps it cheap."""

from __future__ import annotations

# Greater than any timestamp ever written to an extent, late or by a wrong clock, so that removed
# rows stay removed.
FOREVER = 1 << 62

# --- heads: conditional writes only -----------------------------------------------------------

# A new extent. One row.
CREATE_HEAD = """
INSERT INTO extents (pipe_id, extent, queue_name, strict, home, buckets)
VALUES (?, ?, ?, ?, ?, 1) IF NOT EXISTS
"""
# The head of an extent. One row.
READ_HEAD = """
SELECT pipe_id, extent, queue_name, strict, home, buckets, sealed FROM extents WHERE pipe_id = ?
"""
# All extents, for adoption. Bounded by the extents that are not dropped.
LIST_HEADS = """
SELECT pipe_id, extent, queue_name, strict, home, buckets, sealed FROM extents
"""
# The writer moves on to the next bucket. One row.
BEGIN_BUCKET = """
UPDATE extents SET buckets = ? WHERE pipe_id = ? IF extent = ? AND buckets = ? AND sealed = null
"""
# From now on no bucket begins, and no plain write is acknowledged. One row.
SEAL_HEAD = """
UPDATE extents SET sealed = true WHERE pipe_id = ? IF extent = ? AND buckets = ? AND sealed = null
"""
# The last step of a drop. One row.
DROP_HEAD = """
DELETE FROM extents WHERE pipe_id = ? IF extent = ?
"""

# --- marks: plain writes, with a seq as timestamp, so that the newest wins in any order -------

# Everything below this is acknowledged. One row.
TELL_ACKED = """
INSERT INTO extent_marks (extent, acked) VALUES (?, ?) USING TIMESTAMP ?
"""
# The same, and the writer is gone. One row.
TELL_CLOSED = """
INSERT INTO extent_marks (extent, acked, closed) VALUES (?, ?, true) USING TIMESTAMP ?
"""
# Another pusher asks for its turn. One row.
ASK_TURN = """
INSERT INTO extent_marks (extent, turn) VALUES (?, true) USING TIMESTAMP 1
"""
# The marks of an extent. One row.
READ_MARKS = """
SELECT acked, closed, turn FROM extent_marks WHERE extent = ?
"""
# The marks of a dropped extent, removed. One row.
DROP_MARKS = f"""
DELETE FROM extent_marks USING TIMESTAMP {FOREVER} WHERE extent = ?
"""

# --- frames -----------------------------------------------------------------------------------

# A frame, or the first part of one, with the statics of its bucket: one mutation.
PUT = """
INSERT INTO frames
    (extent, bucket, base_seq, part, start_seq, push_count, count, parts, frame)
VALUES (?, ?, ?, 0, ?, ?, ?, ?, ?) USING TIMESTAMP ?
"""
# The same on a cp queue: one conditional mutation.
PUT_IF = """
UPDATE frames SET start_seq = ?, push_count = ?, count = ?, parts = ?, frame = ?
WHERE extent = ? AND bucket = ? AND base_seq = ? AND part = 0
IF push_count = ? AND sealed = null
"""
# A further part of a large frame: before the first one. One row.
PUT_PART = """
INSERT INTO frames (extent, bucket, base_seq, part, frame) VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?
"""
# cp: from now on no frame is written to this bucket.
SEAL_BUCKET = """
UPDATE frames SET sealed = true WHERE extent = ? AND bucket = ? IF sealed = null
"""
# The statics of a bucket. No row of a frame is read.
READ_BUCKET = """
SELECT DISTINCT extent, bucket, start_seq, push_count FROM frames WHERE extent = ? AND bucket = ?
"""
# Frames from a known one on, up to an acknowledged end. Bounded by the limit, and by the bucket.
READ_FRAMES = """
SELECT base_seq, part, parts, frame FROM frames
WHERE extent = ? AND bucket = ? AND base_seq >= ? AND base_seq < ? LIMIT ?
"""
# The frame that comes next, or its first part, if it is there; it may not be acknowledged yet. All
# columns, as in WALK_FRAMES. One row.
NEXT_FRAME = """
SELECT parts, count, frame FROM frames
WHERE extent = ? AND bucket = ? AND base_seq = ? AND part = 0
"""
# The further parts of a frame.
READ_PARTS = """
SELECT frame FROM frames WHERE extent = ? AND bucket = ? AND base_seq = ? AND part > 0
"""
# Frames that may be unacknowledged, for a seal. All columns, because read repair covers only the
# columns that are asked for. Bounded by what is in flight, and by the bucket.
WALK_FRAMES = """
SELECT base_seq, part, parts, count, frame FROM frames
WHERE extent = ? AND bucket = ? AND base_seq >= ?
"""
# The frame that holds a seq, when its first seq is not known. One row.
FIND_FRAME = """
SELECT base_seq FROM frames WHERE extent = ? AND bucket = ? AND base_seq <= ?
ORDER BY base_seq DESC LIMIT 1
"""
# The beginnings of frames after a damaged one. Bounded by the bucket.
NEXT_FRAMES = """
SELECT base_seq, part FROM frames
WHERE extent = ? AND bucket = ? AND base_seq > ? AND base_seq < ?
"""
# A bucket, removed whole.
DROP_BUCKET = f"""
DELETE FROM frames USING TIMESTAMP {FOREVER} WHERE extent = ? AND bucket = ?
"""
