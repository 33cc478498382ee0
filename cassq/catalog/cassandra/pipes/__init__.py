"""Pipes in a keyspace: created, listed, sealed, retired, staged."""
