"""What a pusher does: it admits messages, groups them into frames, and appends them to pipes."""
