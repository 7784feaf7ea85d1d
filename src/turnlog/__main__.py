"""`python -m turnlog`: the command line."""

import sys

from turnlog.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
