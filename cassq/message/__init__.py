"""Messages and their bytes: frames, batches, columns, bundles, and ranges of sequence numbers."""
