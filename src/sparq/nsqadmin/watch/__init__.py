"""The cluster as it is now and was in the last hour, fetched once for all who look at it."""
