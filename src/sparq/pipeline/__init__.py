"""The clicks pipeline: topic `clicks` in, one Spark application with three streaming queries out.

`clicks` says what a click is; `archive`, `metrics` and `spam_analysis` are the three queries;
`minutes_state` and `open_visits` are what the latter two remember between micro-batches; `app` is
the Spark application. `generator` makes clicks, `publisher` publishes them, `cluster` runs the
daemons, `audit` compares all ends with each other, `report` says it, and `main` joins them to
`sparq run`.
"""
