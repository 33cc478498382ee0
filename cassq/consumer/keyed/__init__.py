"""Keyed groups: the lane of one popper, the line of its messages by key, and what is fair."""
