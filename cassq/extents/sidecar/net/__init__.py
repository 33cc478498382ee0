"""Connections to sidecars, and calls to several of them at once."""
