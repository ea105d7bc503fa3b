"""Reading: bytes of a message -> a click, in any log format or JSON shape.

    schema     settings (`Reading`) and the columns of a click
    formats    the named formats, as tables, and format strings
    times      event times
    lines      access-log lines: one regular expression a format, and a careful one for the rest
    json       JSON objects: columns of values by their paths, and the rest as `extra`
    reader     a batch of messages -> a table of clicks

`reader`, `lines` and `json` load polars, which must not be loaded before Spark forks its workers.
"""
