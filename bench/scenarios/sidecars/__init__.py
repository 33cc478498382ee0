"""Scenarios on sidecars, and of a sidecar's engine."""
