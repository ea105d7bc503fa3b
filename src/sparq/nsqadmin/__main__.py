"""`python -m sparq.nsqadmin`."""

import sys

from sparq.scripts import nsqadmin

sys.exit(nsqadmin())
