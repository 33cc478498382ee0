"""The storm: clients that are real processes, on real servers, under a nemesis, and a checker.

`python -m tests.faults.storm`, or `./dev faults`, runs one; docs/development.md tells more.
"""
