"""The contestants, one a file, all behind the interface in `peer.py`."""
