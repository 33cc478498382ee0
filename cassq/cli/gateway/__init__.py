"""`cassq gateway`: the command, and the program of its processes."""
