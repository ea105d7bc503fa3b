"""`python -m sparq.nsqadmin`."""

import sys

from sparq.nsqadmin.main import main

sys.exit(main())
