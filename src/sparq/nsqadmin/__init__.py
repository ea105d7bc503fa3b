"""nsqadmin: the cluster in a browser and as a JSON API."""
