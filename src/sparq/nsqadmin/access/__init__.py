"""Access control of nsqadmin: identities, roles, sessions, and entries for the audit log."""
