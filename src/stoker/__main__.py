"""`python -m stoker`: the command line without an installed script."""

from stoker.cli.main import main

if __name__ == "__main__":
    main()
