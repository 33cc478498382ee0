"""Workers: what calls a handler with the messages of a group, and settles them by how it ends.

A handler does the work of one message. `loop.py` drives it in the threads of one
process, `supervisor.py` in several processes. Neither knows what a handler does, so anything that
is called with a message can be one.
"""
