"""What each flag of nsqd does in a running nsqd, by theme; `test_nsqd_flags.py` runs the checks."""
