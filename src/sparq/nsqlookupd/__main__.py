"""`python -m sparq.nsqlookupd`."""

import sys

from sparq.scripts import nsqlookupd

sys.exit(nsqlookupd())
