-- The catalog of the embedded store, in SQLite: the schema of a new directory.
-- Numbered files in schema/sqlite/ bring an older directory to it.
-- Times are milliseconds of catalog time unless a column says otherwise.

-- What the directory is: schema version, identity, the clock's anchor of each boot.
CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE queues (
    id             TEXT PRIMARY KEY,
    name           TEXT NOT NULL,
    policy         TEXT NOT NULL,               -- JSON of QueuePolicy
    version        INTEGER NOT NULL DEFAULT 1,  -- compare-and-set of the policy
    groups_version INTEGER NOT NULL DEFAULT 1,  -- raised when a group comes or goes or a pipe retires
    tail           TEXT NOT NULL DEFAULT '',    -- cp: the newest pipe
    deleted        INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE UNIQUE INDEX queues_by_name ON queues (name) WHERE deleted = 0;

CREATE TABLE groups (
    id            TEXT PRIMARY KEY,
    queue_id      TEXT NOT NULL,
    name          TEXT NOT NULL,
    policy        TEXT NOT NULL,               -- JSON of GroupPolicy
    created_ms    INTEGER NOT NULL,
    floor_ordinal INTEGER NOT NULL DEFAULT 0,  -- every pipe below it is wholly claimed by the group
    UNIQUE (queue_id, name)
) WITHOUT ROWID;

CREATE TABLE pipes (
    ordinal     INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order of creation; never used again
    id          TEXT NOT NULL UNIQUE,
    queue_id    TEXT NOT NULL,
    state       INTEGER NOT NULL,                   -- PipeState
    owner       TEXT NOT NULL,
    created_ms  INTEGER NOT NULL,
    lease_ms    INTEGER NOT NULL,
    beat        INTEGER NOT NULL DEFAULT 0,
    end_seq     INTEGER,                            -- both set once, by the seal
    end_pos     INTEGER,
    predecessor TEXT NOT NULL DEFAULT ''
);
CREATE INDEX pipes_live ON pipes (queue_id, ordinal) WHERE state < 3;
CREATE INDEX pipes_consumed ON pipes (state) WHERE state = 3;

-- Where a group stands in a pipe.
CREATE TABLE cursors (
    group_id  TEXT NOT NULL,
    pipe_id   TEXT NOT NULL,
    start_seq INTEGER NOT NULL DEFAULT 0,  -- the group was created after what lies below
    ack_seq   INTEGER NOT NULL,
    ack_pos   INTEGER NOT NULL,
    chain_seq INTEGER NOT NULL,
    chain_pos INTEGER NOT NULL,
    epoch     INTEGER NOT NULL DEFAULT 0,
    owner     TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (group_id, pipe_id)
) WITHOUT ROWID;
CREATE INDEX cursors_by_pipe ON cursors (pipe_id);

-- Claims between a cursor's ack and chain: disjoint, without a gap.
CREATE TABLE claims (
    group_id   TEXT NOT NULL,
    pipe_id    TEXT NOT NULL,
    start_seq  INTEGER NOT NULL,
    end_seq    INTEGER NOT NULL,
    pos        INTEGER NOT NULL,
    state      INTEGER NOT NULL,           -- ClaimState
    due_ms     INTEGER NOT NULL,
    deliveries INTEGER NOT NULL,
    losses     INTEGER NOT NULL DEFAULT 0,
    holder     TEXT NOT NULL DEFAULT '',
    version    TEXT NOT NULL,
    acked      BLOB NOT NULL DEFAULT x'',  -- ranges, 16 bytes each
    failure    TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (group_id, pipe_id, start_seq)
) WITHOUT ROWID;
CREATE INDEX claims_due ON claims (group_id, due_ms) WHERE state < 2;

-- Messages that were moved elsewhere: an intent first, settled with the old place's mark.
CREATE TABLE moves (
    group_id  TEXT NOT NULL,
    pipe_id   TEXT NOT NULL,
    seq       INTEGER NOT NULL,
    reason    TEXT NOT NULL,
    dest_pipe TEXT NOT NULL,
    dest_seq  INTEGER NOT NULL,
    at_ms     INTEGER NOT NULL,
    settled   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (group_id, pipe_id, seq)
) WITHOUT ROWID;
CREATE INDEX moves_by_pipe ON moves (pipe_id);
CREATE INDEX moves_arriving ON moves (dest_pipe) WHERE settled = 0;

-- Totals of retired pipes, written once.
CREATE TABLE retired (
    pipe_id  TEXT NOT NULL,
    group_id TEXT NOT NULL,
    queue_id TEXT NOT NULL,
    start    INTEGER NOT NULL,  -- the group was created after what lies below
    pushed   INTEGER NOT NULL,
    dead     INTEGER NOT NULL,
    PRIMARY KEY (queue_id, pipe_id, group_id)
) WITHOUT ROWID;

-- Leases of the `lease` locker and of passes; a row stays, so that epochs only grow.
CREATE TABLE leases (
    name   TEXT PRIMARY KEY,
    owner  TEXT NOT NULL,
    epoch  INTEGER NOT NULL,
    due_ms INTEGER NOT NULL
) WITHOUT ROWID;
