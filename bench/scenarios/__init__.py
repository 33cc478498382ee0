"""What is measured, one scenario a file, all behind the interface in `scenario.py`."""
