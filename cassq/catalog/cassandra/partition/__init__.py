"""A pipe's partition: its rows, what is known of it, and conditional writes to it."""
