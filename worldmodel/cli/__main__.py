"""`python -m worldmodel.cli`."""

import sys

from worldmodel.cli import main

if __name__ == "__main__":
    sys.exit(main())
