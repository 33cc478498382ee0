"""Pipes in a keyspace: made, listed, sealed, retired, staged."""
