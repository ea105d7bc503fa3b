// Draws each chart from the table below it. All charts have one cursor and one zoom.
"use strict";
const phone = matchMedia("(max-width: 40rem)");
const dark = matchMedia("(prefers-color-scheme: dark)");
const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const utc = (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC");
const [minute, clock, day] = ["{D} {MMM} {YYYY} {HH}:{mm}", "{HH}:{mm}", "{D} {MMM}"].map((template) => uPlot.fmtDate(template));
const plots = [];

// Labels of the time axis: the time, and below it the day where one begins.
function labels(_, ticks, __, ___, step) {
  return ticks.map((at, place) => {
    if (step >= 86400) return day(utc(at));
    return place && at % 86400 ? clock(utc(at)) : `${clock(utc(at))}\n${day(utc(at))}`;
  });
}

// The figures of a table by column: times in seconds, then a column of numbers or null for each head.
function figures(table) {
  const rows = [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.textContent.trim()));
  const number = (text) => (text === "" ? null : Number(text));
  const seconds = (text) => Date.parse(`${text.replace(" ", "T")}${text.includes(":") ? "Z" : ""}`) / 1000;
  return [...table.tHead.rows[0].cells].map((_, at) => rows.map((row) => (at ? number(row[at]) : seconds(row[at]))));
}

// Each column plus those before it, so that areas stand one upon the other.
function stacked([times, ...columns]) {
  const sums = times.map(() => 0);
  return [times, ...columns.map((column) => column.map((value, at) => (sums[at] += value)))];
}

function made(figure) {
  const table = figure.querySelector("table");
  const heads = [...table.tHead.rows[0].cells].slice(1).map((cell) => cell.textContent);
  const data = figures(table);
  const isAreas = figure.dataset.kind === "areas";
  const isDense = data[0].length > 600;
  const color = (head, at) => () => token(isAreas ? `status-${head}` : `series-${at + 1}`);
  const series = heads.map((head, at) => ({
    label: head,
    stroke: color(head, at),
    fill: isAreas ? color(head, at) : at ? undefined : () => `${token("series-1")}22`,
    width: isAreas ? 0 : isDense ? 1 : 1.75,
    dash: isAreas || isDense ? undefined : [undefined, [6, 3], [2, 3], [8, 3, 2, 3]][at % 4],
    points: { show: !isAreas && data[0].length < 60, size: 5 },
    spanGaps: true,
    value: (_, __, ___, place) => (place == null || data[at + 1][place] == null ? "" : data[at + 1][place].toLocaleString("en")),
  }));
  // The highest sum is drawn first, and lower ones over it.
  const order = (list) => (isAreas ? [list[0], ...list.slice(1).reverse()] : list);
  const axis = { stroke: () => token("muted"), grid: { stroke: () => token("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  const plot = figure.querySelector(".plot");
  const options = {
    width: plot.clientWidth,
    height: phone.matches ? 180 : 220,
    padding: [12, 12, 0, 0],
    tzDate: utc,
    cursor: { sync: { key: "time" }, drag: { x: true, y: false }, points: { size: 6 }, y: false },
    scales: { y: { range: (_, __, high) => [0, (high || 1) * 1.05] } },
    axes: [
      { ...axis, grid: { show: false }, space: 64, size: 42, values: labels },
      { ...axis, size: 48, values: (_, ticks) => ticks.map((tick) => short.format(tick)) },
    ],
    series: order([{ label: "at", value: (_, at) => (at == null ? "" : minute(utc(at))) }, ...series]),
  };
  return new uPlot(options, order(isAreas ? stacked(data) : data), plot);
}

document.documentElement.classList.add("has-script");
for (const figure of document.querySelectorAll("figure.chart")) plots.push(made(figure));
dark.addEventListener("change", () => plots.forEach((plot) => plot.redraw()));
new ResizeObserver(() => {
  for (const plot of plots) plot.setSize({ width: plot.root.parentElement.clientWidth, height: plot.height });
}).observe(document.body);
