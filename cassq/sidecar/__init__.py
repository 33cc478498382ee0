"""The storage server: a sidecar keeps replicas of extents on a local disk, for clients over TCP."""
