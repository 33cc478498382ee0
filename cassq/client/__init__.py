"""The client and its queues, and how a URL becomes one: embedded, on a cluster, or with a spool."""
