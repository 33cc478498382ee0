"""The `cassq` command; one file for each noun."""
