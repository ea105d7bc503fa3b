"""The daemons that sparq's nsqadmin and Go's nsqadmin both query."""

from tests.nsqadmin.conftest import ours

__all__ = ["ours"]
