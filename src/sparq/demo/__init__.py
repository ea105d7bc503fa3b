"""The clicks of `sparq run` when you give it no log: a simulated web site and its visitors.

`website` has the pages and the visitors, `generator` a day of their requests as log lines, with
robots planted among the people. The same seed gives the same day. `scores` says how well findings
match them. No other package is used here.
"""
