"""The client and its queues, and opening them from a URL: embedded, in a cluster, with a spool."""
