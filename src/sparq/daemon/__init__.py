"""What the daemons share: flags, log lines, HTTP answers, listening sockets, start and stop."""
