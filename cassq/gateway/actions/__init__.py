"""What the gateway does for SQS clients: the actions of SQS, on the queues of one place."""
