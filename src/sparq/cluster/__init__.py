"""The nsqds and nsqlookupds of a cluster, asked and told over HTTP: for nsqadmin and the tools."""
