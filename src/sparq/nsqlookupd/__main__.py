"""`python -m sparq.nsqlookupd`."""

import sys

from sparq.nsqlookupd.main import main

sys.exit(main())
