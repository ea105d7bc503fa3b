"""HTTP access to the nsqds and nsqlookupds of a cluster, for nsqadmin and the tools."""
