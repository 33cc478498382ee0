"""Between an event loop and what blocks: threads that do what blocks, a batch at a time.

A loop never waits for storage here. What its tasks ask for in one turn is handed to a thread
together, and what a thread has done comes back together.
"""
