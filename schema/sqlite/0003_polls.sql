-- When poppers of groups that can expire were last noted as present, and such groups themselves.
ALTER TABLE groups ADD COLUMN polled_ms INTEGER NOT NULL DEFAULT 0;
CREATE INDEX groups_expiring ON groups (queue_id)
    WHERE json_extract(policy, '$.group_expires') IS NOT NULL;
