"""The lockers: leases with a callback for their loss; one file per backend."""
