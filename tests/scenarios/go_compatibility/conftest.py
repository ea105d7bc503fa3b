"""The daemons that sparq's nsqadmin and Go's nsqadmin both query."""

from tests.nsqadmin.conftest import sparq_cluster

__all__ = ["sparq_cluster"]
