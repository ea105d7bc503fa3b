"""`python -m sparq.nsqd`."""

import sys

from sparq.scripts import nsqd

if __name__ == "__main__":
    sys.exit(nsqd())
