"""What a sidecar does unasked: scrubbing, copying, looking after what was left."""
