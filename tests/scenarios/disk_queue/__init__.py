"""What the tests of NSQ's disk queue (go-diskqueue) assert, of sparq."""
