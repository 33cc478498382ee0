"""Scenarios of the protocol of SQS, and of plain HTTP beside it."""
