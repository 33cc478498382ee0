"""What a sidecar keeps its replicas in: a port, RocksDB behind it, and its checks."""
