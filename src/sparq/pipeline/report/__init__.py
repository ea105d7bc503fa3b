"""The report: what the tables say about a period, as one page, and about a run, with its audit.

tables -> figures.figures_of (polars) -> page.page_of (Jinja2, uPlot) -> report.html
tables -> audit.audit (SQL) -> run_report.report_of -> report.json, the text on the terminal
"""
