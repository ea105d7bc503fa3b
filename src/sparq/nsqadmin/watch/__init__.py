"""The cluster's state, now and over the last hour, fetched once for all viewers."""
