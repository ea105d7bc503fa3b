"""The state of the query `metrics`: exact figures of each open minute, spread over buckets.

    messages -> pack, on executors -> a row per bucket -> apply, stateful -> output rows -> read

A click counts in its visitor's bucket, a page in its own: visitors of a minute add up over buckets
without an estimate, and the top 10 pages of all are among the top 10 of the buckets. All of it is
pure (Arrow tables and numpy arrays in and out) but `processor`, which binds it to Spark.
"""
