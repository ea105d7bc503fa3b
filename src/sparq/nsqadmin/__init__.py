"""The web administration of an NSQ cluster: API, pages, rights."""
