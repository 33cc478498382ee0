"""The `cassq` command; one file a noun."""
