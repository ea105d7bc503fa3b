"""The assertions of go-diskqueue's tests, made about sparq."""
