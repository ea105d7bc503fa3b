"""The daemons that sparq's nsqadmin and Go's are asked about."""

from tests.nsqadmin.conftest import ours

__all__ = ["ours"]
