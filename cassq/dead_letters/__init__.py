"""Dead letters: the queue of a group's, and the jobs that merge, purge, export and import them."""
