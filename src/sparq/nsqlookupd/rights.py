"""The roles that each route of nsqlookupd needs, if there is a token file.

A client with any role for a topic may find its nsqds. `/nodes` returns the addresses of all nsqds
and the names of their topics. A test checks that no route is missing.
"""

from __future__ import annotations

from typing import Final

from sparq.daemon.access.rights import DEBUG, OPEN, Rights, of_all, of_any, of_topic
from sparq.daemon.access.roles import Role

RIGHTS: Final[Rights] = {
    ("GET", "/ping"): OPEN,
    ("GET", "/info"): of_any(Role.FIND),
    ("GET", "/lookup"): of_topic(Role.FIND),
    ("GET", "/channels"): of_topic(Role.FIND),
    ("GET", "/nodes"): of_any(Role.FIND),
    ("GET", "/topics"): of_all(Role.READ),
    ("GET", "/metrics"): of_all(Role.READ),
    ("POST", "/topic/create"): of_topic(Role.OPERATE),
    ("POST", "/topic/delete"): of_topic(Role.ADMINISTER),
    ("POST", "/topic/tombstone"): of_topic(Role.ADMINISTER),
    ("POST", "/channel/create"): of_topic(Role.OPERATE),
    ("POST", "/channel/delete"): of_topic(Role.ADMINISTER),
    ("GET", "/debug"): of_all(Role.ADMINISTER),
    **DEBUG,
}
"""The needs of each route."""
