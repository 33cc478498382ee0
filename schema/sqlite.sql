-- The catalog of the embedded store, in SQLite: the schema of a new directory.
-- Numbered files in schema/sqlite/ bring an older directory to it.
-- Times are milliseconds of catalog time unless a column says otherwise.

-- What the directory is: schema version, identity, the clock's anchor of each boot. Also
-- schedules: `schedule:NAME`, and JSON.
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
    deleted        INTEGER NOT NULL DEFAULT 0,
    wished_pipes   INTEGER NOT NULL DEFAULT 1,  -- how many are to be open side by side ...
    wished_ms      INTEGER NOT NULL DEFAULT 0   -- ... and when so many were last needed
) WITHOUT ROWID;
-- Queues whose messages expire, are limited in number, or are deduplicated.
CREATE INDEX queues_limited ON queues (id) WHERE deleted = 0 AND (
    json_extract(policy, '$.message_ttl') IS NOT NULL
    OR json_extract(policy, '$.retain_unconsumed') IS NOT NULL
    OR json_extract(policy, '$.max_length') IS NOT NULL
    OR json_extract(policy, '$.dedup_window') > 0);
CREATE INDEX queues_wishing ON queues (id) WHERE wished_pipes > 1 AND deleted = 0;
CREATE UNIQUE INDEX queues_by_name ON queues (name) WHERE deleted = 0;

CREATE TABLE groups (
    id            TEXT PRIMARY KEY,
    queue_id      TEXT NOT NULL,
    name          TEXT NOT NULL,
    policy        TEXT NOT NULL,               -- JSON of GroupPolicy
    created_ms    INTEGER NOT NULL,
    floor_ordinal INTEGER NOT NULL DEFAULT 0,  -- every pipe below it is wholly claimed by the group
    success_ms    INTEGER NOT NULL DEFAULT 0,  -- when something was last committed; noted now and then
    polled_ms     INTEGER NOT NULL DEFAULT 0,  -- when a popper was last noted; only if it can expire
    UNIQUE (queue_id, name)
) WITHOUT ROWID;
-- Groups that are removed when they have had no popper for a time.
CREATE INDEX groups_expiring ON groups (queue_id)
    WHERE json_extract(policy, '$.group_expires') IS NOT NULL;

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
    predecessor TEXT NOT NULL DEFAULT '',
    group_id    TEXT NOT NULL DEFAULT '',           -- the only group it is for
    timer_ms    INTEGER,                            -- a timer pipe: nothing is due before
    rate        INTEGER NOT NULL DEFAULT 0,         -- messages a second, as its owner tells
    stage       TEXT NOT NULL DEFAULT '',           -- staged: the epoch and id of its write
    priority    INTEGER NOT NULL DEFAULT 0          -- of all its messages; greater ones come first
);
CREATE INDEX pipes_staged ON pipes (queue_id, stage) WHERE state = 4;
CREATE INDEX pipes_timers ON pipes (queue_id, timer_ms) WHERE timer_ms IS NOT NULL AND state < 3;
CREATE INDEX pipes_of_group ON pipes (group_id) WHERE group_id <> '';
CREATE INDEX pipes_live ON pipes (queue_id, ordinal) WHERE state < 3;
-- Those with a priority: it holds nothing else.
CREATE INDEX pipes_urgent ON pipes (queue_id, priority DESC, ordinal)
    WHERE priority > 0 AND state < 3;
CREATE INDEX pipes_unsealed ON pipes (queue_id) WHERE state < 2;
CREATE INDEX pipes_consumed ON pipes (state) WHERE state = 3;

-- Writes of staged pipes: each decides when, and whether, its pipes become the queue's. A row stays
-- as long as its queue, so that what was published is not written again.
CREATE TABLE writes (
    queue_id TEXT NOT NULL,
    id       TEXT NOT NULL,
    number   INTEGER NOT NULL,
    epoch    INTEGER NOT NULL,
    state    INTEGER NOT NULL,  -- WriteState
    driver   TEXT NOT NULL,
    begun_ms INTEGER NOT NULL,
    PRIMARY KEY (queue_id, id)
) WITHOUT ROWID;
CREATE INDEX writes_open ON writes (queue_id) WHERE state = 0;

-- Who leads writes.
CREATE TABLE drivers (
    id       TEXT PRIMARY KEY,
    beat     INTEGER NOT NULL,
    lease_ms INTEGER NOT NULL,
    seen_ms  INTEGER NOT NULL
) WITHOUT ROWID;

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
    joint      INTEGER NOT NULL DEFAULT 0,  -- handed out together with other rows
    holder     TEXT NOT NULL DEFAULT '',
    version    TEXT NOT NULL,
    acked      BLOB NOT NULL DEFAULT x'',  -- ranges: RangeSet.to_bytes
    failure    TEXT NOT NULL DEFAULT '',
    priority   INTEGER NOT NULL DEFAULT 0,  -- that of its pipe
    PRIMARY KEY (group_id, pipe_id, start_seq)
) WITHOUT ROWID;
CREATE INDEX claims_due ON claims (group_id, due_ms) WHERE state < 2;
-- Those with a priority: it holds nothing else.
CREATE INDEX claims_urgent ON claims (group_id, priority, due_ms) WHERE priority > 0 AND state < 2;

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

-- What was removed from a pipe without having been committed: expired, purged, cancelled, merged,
-- lost.
CREATE TABLE removed (
    group_id  TEXT NOT NULL,
    pipe_id   TEXT NOT NULL,
    start_seq INTEGER NOT NULL,
    end_seq   INTEGER NOT NULL,
    reason    TEXT NOT NULL,
    at_ms     INTEGER NOT NULL,
    PRIMARY KEY (group_id, pipe_id, start_seq)
) WITHOUT ROWID;
CREATE INDEX removed_by_pipe ON removed (pipe_id);

-- Totals of retired pipes, written once. Those of about a thousand pipes are a sheet.
CREATE TABLE retired (
    pipe_id  TEXT NOT NULL,
    group_id TEXT NOT NULL,
    queue_id TEXT NOT NULL,
    start    INTEGER NOT NULL,  -- the group was created after what lies below
    pushed   INTEGER NOT NULL,
    dead     INTEGER NOT NULL,
    expired  INTEGER NOT NULL DEFAULT 0,
    purged   INTEGER NOT NULL DEFAULT 0,
    merged   INTEGER NOT NULL DEFAULT 0,
    lost     INTEGER NOT NULL DEFAULT 0,  -- damaged, and given up by `cassq pipe skip`
    sheet    INTEGER NOT NULL,
    whole    INTEGER NOT NULL DEFAULT 0,  -- 1 in one of the rows of a pipe: it stands for the pipe
    PRIMARY KEY (queue_id, pipe_id, group_id)
) WITHOUT ROWID;
CREATE INDEX retired_sheets ON retired (queue_id, sheet);

-- What the rows of a full sheet come to, written once: none of them is read again for a sum.
CREATE TABLE retired_sheets_full (
    queue_id TEXT NOT NULL,
    sheet    INTEGER NOT NULL,
    group_id TEXT NOT NULL,     -- empty: the pipes themselves, whatever group they were for
    pipes    INTEGER NOT NULL,
    start    INTEGER NOT NULL,
    pushed   INTEGER NOT NULL,
    dead     INTEGER NOT NULL,
    expired  INTEGER NOT NULL,
    purged   INTEGER NOT NULL,
    merged   INTEGER NOT NULL,
    lost     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (queue_id, sheet, group_id)
) WITHOUT ROWID;

-- Leases of the `lease` locker and of passes; a row stays, so that epochs only grow.
CREATE TABLE leases (
    name   TEXT PRIMARY KEY,
    owner  TEXT NOT NULL,
    epoch  INTEGER NOT NULL,
    due_ms INTEGER NOT NULL
) WITHOUT ROWID;

-- Where the message of a dedup_id is, or was about to be, written.
CREATE TABLE dedups (
    queue_id TEXT NOT NULL,
    dedup_id TEXT NOT NULL,
    pipe_id  TEXT NOT NULL,
    seq      INTEGER NOT NULL,
    at_ms    INTEGER NOT NULL,
    PRIMARY KEY (queue_id, dedup_id)
) WITHOUT ROWID;
CREATE INDEX dedups_by_time ON dedups (queue_id, at_ms);

-- Poppers, as they were last seen.
CREATE TABLE members (
    group_id TEXT NOT NULL,
    name     TEXT NOT NULL,
    seen_ms  INTEGER NOT NULL,
    waiting  INTEGER NOT NULL,
    PRIMARY KEY (group_id, name)
) WITHOUT ROWID;

-- Totals and depths by minute, hour and day.
CREATE TABLE samples (
    subject TEXT NOT NULL,
    step_ms INTEGER NOT NULL,
    at_ms   INTEGER NOT NULL,
    data    TEXT NOT NULL,              -- JSON
    PRIMARY KEY (subject, step_ms, at_ms)
) WITHOUT ROWID;
CREATE INDEX samples_by_age ON samples (step_ms, at_ms);

-- What alerts have told of, and have not yet told the end of.
CREATE TABLE incidents (
    key      TEXT PRIMARY KEY,
    since_ms INTEGER NOT NULL,
    told_ms  INTEGER NOT NULL,
    data     TEXT NOT NULL,             -- JSON
    version  INTEGER NOT NULL
) WITHOUT ROWID;

-- Storage sidecars, as they last told; all but `state` is written again with each beat.
CREATE TABLE sidecars (
    name        TEXT PRIMARY KEY,
    address     TEXT NOT NULL,
    zone        TEXT NOT NULL,
    generation  TEXT NOT NULL,
    state       INTEGER NOT NULL,           -- SidecarState
    lease_ms    INTEGER NOT NULL,
    free_bytes  INTEGER NOT NULL,
    total_bytes INTEGER NOT NULL,
    extents     INTEGER NOT NULL,
    load        INTEGER NOT NULL,           -- bytes a second
    read_only   INTEGER NOT NULL,
    damaged     INTEGER NOT NULL,           -- extents
    http        TEXT NOT NULL,
    seen_ms     INTEGER NOT NULL
) WITHOUT ROWID;

-- Where the extents of pipes are that are on sidecars.
CREATE TABLE placements (
    pipe_id    TEXT PRIMARY KEY,
    queue_name TEXT NOT NULL,
    strict     INTEGER NOT NULL,
    replicas   TEXT NOT NULL,               -- JSON: of each its sidecar and that one's generation
    wanted     INTEGER NOT NULL,
    version    TEXT NOT NULL,               -- compare-and-set
    created_ms INTEGER NOT NULL,
    end_seq    INTEGER                      -- set once, by the seal
) WITHOUT ROWID;
