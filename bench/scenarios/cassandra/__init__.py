"""Scenarios on Cassandra."""
