"""Create a bearer token and its line for the token file of nsqd or nsqlookupd:
`python -m sparq.daemon.access NAME ROLES [LAST_DAY]`.
"""

from __future__ import annotations

import sys

from sparq.daemon.access.issue import issue

if __name__ == "__main__":
    sys.exit(issue("sparq.daemon.access", __doc__))
