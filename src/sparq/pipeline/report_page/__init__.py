"""`data/report.html`: the report of a run as one page that needs nothing else.

`page` fills in the template `report.html`: `page_of(report, minutes, findings, samples) -> str`.
`points` bounds what is drawn, `charts` draws it, `timeline` says which charts there are.

The page has no script and makes no request: charts are SVG drawn here, CSS shows the figures under
the pointer, and each chart has its figures as a table. Text from clicks is escaped everywhere, and
the page's Content-Security-Policy would stop it from being anything else. `charts` says why pygal
draws them, and what else was tried.
"""
