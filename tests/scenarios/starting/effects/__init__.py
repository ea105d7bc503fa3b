"""Checks of each nsqd flag's effect in a running nsqd, by theme; run by `test_nsqd_flags.py`."""
