"""Known bugs, planted in copies of the real source one at a time, and the tests that see them.

`python -m tests.mutants --help` runs them; what each is stands in the files `in_*.py`.
"""
