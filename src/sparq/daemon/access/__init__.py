"""Access rights of a daemon: token file, roles, audit log."""
