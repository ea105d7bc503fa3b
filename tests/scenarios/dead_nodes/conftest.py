"""The daemons shared by the tests of the tools and of nsqadmin."""

from tests.nsqadmin.conftest import cluster, sparq_cluster
from tests.tools.conftest import lookupd, nsqd, nsqds

__all__ = ["cluster", "lookupd", "nsqd", "nsqds", "sparq_cluster"]
