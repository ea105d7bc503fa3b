"""The same requests to Go's program and to sparq's: the responses are equal."""
