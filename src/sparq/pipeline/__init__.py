"""The clicks pipeline: reads topic `clicks` in one Spark application with three streaming queries.

`clicks` defines a click. `archive`, `metrics` and `spam_analysis` are the three queries; they
write `tables`, which `maintenance` keeps small; `sessions` holds the state of the last one between
micro-batches, and its rules; `app` is the Spark application. For `sparq run`, `sparq.demo` makes
clicks, `publisher` publishes them, `cluster` runs the daemons, `audit` compares what was published
with what was stored, `report` presents the result, and `main` connects these parts.
"""
