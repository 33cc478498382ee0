-- Messages that are damaged, and were given up by `cassq pipe skip`, in the totals of retired pipes.
ALTER TABLE retired ADD COLUMN lost INTEGER NOT NULL DEFAULT 0;
ALTER TABLE retired_sheets_full ADD COLUMN lost INTEGER NOT NULL DEFAULT 0;
