"""Commands about queues, groups and messages."""
