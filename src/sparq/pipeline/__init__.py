"""The clicks pipeline: reads topic `clicks` in one Spark application with three streaming queries.

`reading` defines a click. `archive`, `metrics` and `spam_analysis` are the three queries; they
write `tables`, which `maintenance` keeps small; `sessions` holds the state of the last one between
micro-batches, and its rules; `app` is the Spark application, and `monitor` its metrics. `run` is
`sparq run`: it starts the daemons and the application, publishes clicks that `sparq.demo` makes,
and `audit` and `report` compare what was published with what was stored.
"""
