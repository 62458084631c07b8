"""`python -m raftkv` is the `raftkv` command."""

from .cli.main import main

if __name__ == "__main__":
    main()
