"""A partition of claims: its rows, a cache of it, and conditional writes to it."""
