"""What programs expect of a client library for NSQ, tested against real daemons."""
