"""`python -m cassq`: the same as the `cassq` command."""

from cassq.cli.start import main

if __name__ == "__main__":
    main()
