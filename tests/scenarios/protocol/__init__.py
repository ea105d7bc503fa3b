"""The V2 protocol on real sockets."""
