"""Opening the backends that a URL names: a directory, or a keyspace, with or without sidecars."""
