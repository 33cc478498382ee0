"""Cursors, claims and moves in a keyspace."""
