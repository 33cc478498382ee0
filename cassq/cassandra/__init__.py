"""Sessions with a Cassandra cluster, for the catalog and the extents stored there."""
