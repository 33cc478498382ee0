"""The catalog: everything but the bytes of messages; one folder per backend."""
