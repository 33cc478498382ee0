"""Commands for operators: the reaper, audits, statistics, sidecars, schemas, spools."""
