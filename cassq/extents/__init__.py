"""The extent stores: where the bytes of pipes live; one file a backend."""
