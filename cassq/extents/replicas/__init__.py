"""How replicated extents are looked after: the fleet of sidecars, and what extents lack."""
