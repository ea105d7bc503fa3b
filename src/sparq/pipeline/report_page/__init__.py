"""`data/report.html`: the report of a run as one self-contained page.

`page` fills in the template `report.html`: `page_of(report, minutes, findings, samples) -> str`.
`points` limits the number of points, `charts` draws a chart, `timeline` defines the charts.

The page has no script and makes no request: charts are SVG drawn here, CSS shows the figures under
the pointer, and each chart has its figures as a table. Text from clicks is escaped everywhere, and
the page's Content-Security-Policy would keep it from being executed or loading anything. `charts`
explains why pygal draws the charts, and lists the alternatives that were tried.
"""
