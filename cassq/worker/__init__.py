"""Workers call a handler with each message of a group, and settle the message by how that ends.

A handler does the work of one message. `loop.py` runs it in the threads of one process, `tasks.py`
in an event loop, and `supervisor.py` in several processes. None of them knows what a handler does,
so anything that can be called with a message can be one.
"""
