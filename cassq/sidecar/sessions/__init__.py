"""Clients of a sidecar: connections, requests, and the syncs they share."""
