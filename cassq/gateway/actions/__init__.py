"""The actions of SQS, carried out on the queues of one URL."""
