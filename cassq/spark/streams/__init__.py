"""Streams: what a query reads of one queue or several, from offset to offset."""
