"""The protocol of clients and sidecars: its messages, and their encoding."""
