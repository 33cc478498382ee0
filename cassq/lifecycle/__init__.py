"""What happens to pipes, groups and messages between a push and an ack, in any process."""
