"""Real servers for tests: Cassandra, ZooKeeper and Hazelcast, one or several, started on loopback.

    python -m tests.servers --help

or, in Python, `with cassandra.cluster(nodes=3) as servers`, or the fixtures of `fixtures.py`.
"""
