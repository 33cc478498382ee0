"""Peers that are libraries over SQLite."""
