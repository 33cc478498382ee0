"""The storage engine of a sidecar: a port, RocksDB behind it, and the checks of requests."""
