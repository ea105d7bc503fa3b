"""nsqadmin: a cluster of nsqds in a browser, and over a JSON API (docs/nsqadmin.md)."""
