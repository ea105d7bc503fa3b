"""The looks of the page: one style sheet, light and dark, for a phone, a screen and paper.

Colours are variables, so that charts follow the reader's choice without being drawn again. Lines
and areas differ in more than colour: lines in their dashes, areas in their order and their legend.
"""

from typing import Final

STYLE: Final = """
:root {
  color-scheme: light dark;
  --paper: #fff; --card: #f5f7fa; --ink: #1b2430; --muted: #566273; --line: #d5dce5;
  --good: #17703c; --good-card: #e5f5ea; --bad: #b01c2e; --bad-card: #fdebed;
  --warn: #865500; --warn-card: #fff4dc; --focus: #1d5fd0;
  --blue: #2f6fde; --orange: #c2570c; --violet: #7b53c4; --green: #2b8a6e;
  --amber: #b57b00; --red: #cf3f4f; --grey: #7f8a99;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --paper: #10151c; --card: #1a212b; --ink: #e7ecf3; --muted: #a3afbf; --line: #323d4b;
    --good: #6fdc98; --good-card: #12301f; --bad: #ff8d98; --bad-card: #3c171c;
    --warn: #f3c261; --warn-card: #362a10; --focus: #8ab4ff;
    --blue: #6ea8ff; --orange: #ff9f55; --violet: #b799f5; --green: #4fc3a1;
    --amber: #e0ac3c; --red: #ff7f8a; --grey: #8793a3;
  }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 1rem 1.25rem 3rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.35rem; margin: 0; }
h2 { font-size: 1.15rem; margin: 0; }
h3 { font-size: 1rem; margin: 1rem 0 .25rem; }
p { margin: .25rem 0; }
a { color: var(--focus); }
:focus-visible { outline: 3px solid var(--focus); outline-offset: 2px; }
.skip { position: absolute; left: -100vw; }
.skip:focus { left: 1rem; top: .5rem; background: var(--paper); padding: .25rem .5rem; }
.source { color: var(--muted); overflow-wrap: anywhere; margin-bottom: .75rem; }
.verdict { border-left: .5rem solid; border-radius: .375rem; padding: .75rem 1rem; }
.verdict h2 { font-size: 1.6rem; line-height: 1.25; }
.verdict p, .verdict li { color: var(--ink); }
.verdict.holds { color: var(--good); background: var(--good-card); border-color: var(--good); }
.verdict.fails { color: var(--bad); background: var(--bad-card); border-color: var(--bad); }
.warnings { background: var(--warn-card); border-left: .5rem solid var(--warn);
  border-radius: .375rem; padding: .5rem 1rem .5rem 2rem; margin: .75rem 0; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(10.5rem, 1fr));
  gap: .5rem; margin: .75rem 0; }
.figures div { background: var(--card); border-radius: .375rem; padding: .4rem .75rem; }
.figures dt { color: var(--muted); font-size: .85rem; }
.figures dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.figures small { color: var(--muted); font-size: .8rem; display: block; }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1rem; padding: 0;
  margin: .75rem 0; }
section { margin: 2rem 0 0; break-inside: avoid; }
figure { margin: .5rem 0 0; }
.note { color: var(--muted); font-size: .9rem; }
.scroll { overflow-x: auto; }
details .scroll { max-height: 24rem; overflow-y: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
thead th { color: var(--muted); font-weight: 600; font-size: .85rem; white-space: nowrap; }
tbody th { font-weight: 400; }
details thead th { position: sticky; top: 0; background: var(--paper); }
.number { text-align: right; white-space: nowrap; }
.when { white-space: nowrap; }
.text { overflow-wrap: anywhere; min-width: 9rem; }
.text .note { overflow-wrap: normal; }
.bar { width: 30%; min-width: 6rem; }
.bar span { display: block; height: .8rem; margin-top: .35rem; border-radius: 0 .2rem .2rem 0;
  background: var(--blue); min-width: 2px; print-color-adjust: exact;
  -webkit-print-color-adjust: exact; }
.bar span.none { min-width: 0; }
details { margin: .25rem 0; }
summary { cursor: pointer; color: var(--focus); padding: .2rem 0; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; padding: 0;
  margin: .25rem 0 0; font-size: .9rem; }
.legend svg { width: 1.6rem; height: .8rem; margin-right: .35rem; vertical-align: -1px; }
.legend .filled .line { stroke-width: 10; }
.chart { display: block; width: 100%; height: auto; overflow: visible; font-family: inherit; }
.chart text { fill: var(--muted); }
.chart .axis.y text { text-anchor: end; }
.chart .axis.x text { text-anchor: middle; }
.chart .background { fill: none; }
.chart .line { fill: none; stroke: var(--line); stroke-width: 1; }
.chart .axis.x .guide.line { stroke: none; }
.layer .line, .legend .line { fill: none; stroke: var(--layer); stroke-width: 1.6;
  stroke-linejoin: round; }
.chart .filled .line { fill: var(--layer); stroke: none; print-color-adjust: exact; }
.layer-clicks, .layer-q0 { --layer: var(--blue); }
.chart .layer-clicks.filled .line { fill-opacity: .35; stroke: var(--layer); }
.layer-visitors, .layer-q1 { --layer: var(--orange); }
.layer-q2 { --layer: var(--violet); }
.layer-q3 { --layer: var(--green); }
.layer-q1 .line, .layer-visitors .line { stroke-dasharray: 7 3; }
.layer-q2 .line { stroke-dasharray: 2 3; }
.layer-q3 .line { stroke-dasharray: 9 3 2 3; }
.layer-1xx, .layer-other { --layer: var(--grey); }
.layer-2xx { --layer: var(--green); }
.layer-3xx { --layer: var(--blue); }
.layer-4xx { --layer: var(--amber); }
.layer-5xx { --layer: var(--red); }
.hit rect { fill: transparent; }
.hit text { visibility: hidden; }
.hit:hover rect { fill: var(--ink); fill-opacity: .15; }
.chart .hit:hover text { visibility: visible; fill: var(--ink); stroke: var(--paper);
  stroke-width: 5px; paint-order: stroke; }
.narrow { display: none; }
@media (max-width: 40rem) {
  body { padding: .75rem .75rem 2rem; }
  .figures { grid-template-columns: 1fr 1fr; }
  .wide { display: none; }
  .narrow { display: block; }
  .bar { width: 25%; min-width: 3rem; }
  section[aria-labelledby="findings"] .bar { display: none; }
  th, td { padding-right: .5rem; }
}
@media print {
  :root { color-scheme: light; }
  body { padding: 0; font-size: 10pt; }
  nav, .skip, .hit, details:not([open]) { display: none; }
  .scroll { max-height: none; overflow: visible; }
  .wide { display: block; }
  .narrow { display: none; }
  .verdict, .warnings { border: 1px solid; }
}
"""
