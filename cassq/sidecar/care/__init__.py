"""A sidecar's background work: scrubbing, copying, collecting orphans, reopening."""
