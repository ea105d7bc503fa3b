"""`python -m sparq.nsqadmin.access NAME ROLES [LAST_DAY]`: create a token and print it with its
line for the token file.
"""

from __future__ import annotations

import sys

from sparq.daemon.access.issue import issue
from sparq.nsqadmin.access.rules import FORM

PREFIX = "nsqadmin_"

if __name__ == "__main__":
    sys.exit(issue("sparq.nsqadmin.access", __doc__, PREFIX, FORM))
