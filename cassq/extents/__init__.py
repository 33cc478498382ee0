"""The extent stores, which keep the bytes of pipes; one folder per backend."""
