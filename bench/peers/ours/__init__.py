"""cassq, over each of its stores."""
