"""The command-line tools, one module each; they know the client and the protocol, nothing below."""
