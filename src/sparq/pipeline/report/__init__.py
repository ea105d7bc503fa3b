"""The report: tables -> figures (polars) -> page (Jinja2, uPlot); and a run's audit (SQL)."""
