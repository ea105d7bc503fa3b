"""nsqd without the journal: every commit syncs its topic's own file, for `many_topics`."""

import sys

from sparq.log import journal
from sparq.nsqd.main import main

if __name__ == "__main__":
    setattr(journal, "SHARE_MIN", sys.maxsize)  # noqa: B010 - types do not allow it
    sys.exit(main())
