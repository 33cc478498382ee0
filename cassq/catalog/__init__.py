"""The catalog: everything but the bytes of messages; one file a backend."""
