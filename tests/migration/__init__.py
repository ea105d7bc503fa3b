"""The import of a data path that Go's nsqd has left."""
