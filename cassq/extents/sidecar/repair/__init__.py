"""Copies of extents made where a replica is missing."""
