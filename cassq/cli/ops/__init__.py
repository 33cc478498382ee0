"""Commands of who runs cassq: the reaper, audits, statistics, sidecars, schemas, spools."""
