"""The daemons shared by the tests of the tools and of nsqadmin."""

from tests.nsqadmin.conftest import cluster, ours
from tests.tools.conftest import lookupd, nsqd, nsqds

__all__ = ["cluster", "lookupd", "nsqd", "nsqds", "ours"]
