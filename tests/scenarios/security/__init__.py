"""The security table: what a hostile peer tries, a test for each row of `rows.py`."""
