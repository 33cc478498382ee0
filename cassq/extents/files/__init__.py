"""Extents as files of one directory."""
