"""The comparison of cassq with its peers: run it with `python -m bench`."""
