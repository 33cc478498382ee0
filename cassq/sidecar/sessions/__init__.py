"""Who talks to a sidecar: connections, requests, and the syncs they share."""
