"""Task frameworks beside one another, each with a worker of its own: what they run, and how."""
