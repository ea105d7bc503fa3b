"""The state of the query `metrics`: exact figures of each open minute, spread over buckets.

    messages -> pack, on executors -> a row per bucket -> apply, stateful -> output rows -> read

A click counts in its visitor's bucket, a page in its own. So the visitors of a minute can be summed
over the buckets without an estimate, and the overall top 10 pages are among the top 10 of the
buckets. All modules are pure (Arrow tables and numpy arrays in and out) except `processor`, which
connects them to Spark.
"""
