"""What programs expect of a client library for NSQ, held against real daemons."""
