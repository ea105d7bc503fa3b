"""The report: what the tables say about a period, as one page, and about a run, with its audit.

tables -> figures.figures_of (polars) -> page.page_of (Jinja2, uPlot) -> report.html
tables -> audit.report_of (SQL) -> report.json -> page.text_of -> the text on the terminal
"""
