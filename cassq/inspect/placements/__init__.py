"""Checking the placements of all extents, and what the last check found."""
