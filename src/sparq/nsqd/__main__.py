"""`python -m sparq.nsqd`."""

import sys

from sparq.nsqd.main import main

if __name__ == "__main__":
    sys.exit(main())
