"""Who may do what in nsqadmin, and the log of who did what."""

from sparq.nsqadmin.access.access import LIVE, Access
from sparq.nsqadmin.access.audit import FILTERS, Audit, Publish
from sparq.nsqadmin.access.audit_entry import OUTCOMES, Entry, Outcome
from sparq.nsqadmin.access.audit_file import Page
from sparq.nsqadmin.access.headers import CONTENT_SECURITY_POLICY, SECURE_HEADERS
from sparq.nsqadmin.access.rights import ACTION_ROLES, RIGHTS, Right, right_of
from sparq.nsqadmin.access.roles import Identity, Role

__all__ = [
    "Access",
    "Identity",
    "Role",
    "RIGHTS",
    "ACTION_ROLES",
    "Right",
    "right_of",
    "LIVE",
    "Audit",
    "Entry",
    "Outcome",
    "OUTCOMES",
    "FILTERS",
    "Page",
    "Publish",
    "SECURE_HEADERS",
    "CONTENT_SECURITY_POLICY",
]
