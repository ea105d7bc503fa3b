"""nsqadmin's JSON API for scripts: the data of its pages, and more (docs/nsqadmin.md)."""
