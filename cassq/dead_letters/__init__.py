"""Dead letters: a group's dead-letter queue, and the jobs that merge, purge, export and import."""
