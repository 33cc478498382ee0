"""Copying extents to where a replica is missing."""
