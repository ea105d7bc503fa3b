"""Code shared by the daemons: options, HTTP server, listening sockets, access, start, reload."""
