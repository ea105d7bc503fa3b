"""The JSON API of nsqadmin: what its pages show, and more, for scripts (docs/nsqadmin.md)."""
