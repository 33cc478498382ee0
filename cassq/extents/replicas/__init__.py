"""Care of replicated extents: the fleet of sidecars, and what extents lack."""
