"""The daemons shared by the tests of the tools."""

from tests.tools.conftest import lookupd, nsqd, nsqds

__all__ = ["lookupd", "nsqd", "nsqds"]
