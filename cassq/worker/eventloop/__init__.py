"""Threads that make blocking calls for an event loop, a batch at a time.

The loop never waits for storage. What its tasks request in one turn is handed to a thread together,
and the results come back together.
"""
