-- The priority of a pipe's messages, and of claims in it. What has none is in no new index.
ALTER TABLE pipes ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
CREATE INDEX pipes_urgent ON pipes (queue_id, priority DESC, ordinal)
    WHERE priority > 0 AND state < 3;
ALTER TABLE claims ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
CREATE INDEX claims_urgent ON claims (group_id, priority, due_ms) WHERE priority > 0 AND state < 2;
