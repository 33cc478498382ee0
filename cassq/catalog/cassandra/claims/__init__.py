"""Cursors and claims in a keyspace: what is taken, due, settled."""
