"""`data/report.html`: the report of a run as one page that needs nothing else.

`page` joins it: `page_of(report, minutes, findings, samples) -> str`. `points` bounds what is
drawn, `charts` draws it, `markup` writes HTML, `sections` are the parts of the page, `style` its
looks.

The page has no script and asks nobody for anything: charts are SVG drawn here, the figures under
the pointer are shown by CSS, and each chart has its figures as a table. What comes from clicks is
text wherever it stands, and the page's own policy (`Content-Security-Policy`) forbids it to be
anything else. Why pygal draws, and what else was tried, is said in `charts`.
"""
