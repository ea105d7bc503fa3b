"""The security table: what a hostile peer can try, with a check for each row of `rows.py`."""
