"""Tasks whose workers are killed."""
