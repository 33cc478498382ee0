"""`cassq worker`: the command, and the program of its processes."""
