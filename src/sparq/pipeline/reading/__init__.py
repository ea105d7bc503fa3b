"""Reading: bytes of a message -> a click, in any log format or JSON shape.

`reader`, `lines` and `json` load polars, which must not be loaded before Spark forks its workers.
"""
