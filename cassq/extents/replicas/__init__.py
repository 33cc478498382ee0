"""Care of replicated extents: the fleet of sidecars, and missing replicas."""
