"""The daemons that the tests of the tools share."""

from tests.tools.conftest import lookupd, nsqd, nsqds

__all__ = ["lookupd", "nsqd", "nsqds"]
