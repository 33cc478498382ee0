"""Sessions with a Cassandra cluster, for the catalog and the extents that are kept in one."""
