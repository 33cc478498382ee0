"""Replicas of extents in RocksDB: the engine below a sidecar."""
