"""What clients and sidecars say to one another, and how it is written on the wire."""
