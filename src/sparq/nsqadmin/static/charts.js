// Charts of figures over time, drawn by uPlot on a canvas.
//
// A page has <div class="plot" data-chart='{"times": [...], "series": [{"label", "values", "unit"}]}'>:
// seconds since 1970, and figures or null. The text below a chart and its table come from the server.
// When a live page changes the attribute, the chart follows. With data-pick="id" the chart is a ruler:
// dragging on it moves the <input type="range" id="id">, whose value is a place in `times`.
const charts = new WeakMap();
const reduced = (number) => new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 }).format(number);
// Counts have an axis of whole numbers.
const whole = [1, 2, 5].flatMap((step) => [...Array(16).keys()].map((power) => step * 10 ** power)).sort((a, b) => a - b);
// Times are UTC, as in logs; the local time is below.
const clock = (seconds, end = 19) => new Date(seconds * 1000).toISOString().slice(11, end);
const day = (seconds) => new Date(seconds * 1000).toISOString().slice(5, 10);
// Bars have a square-root scale, so that small bars stay visible next to a burst; the caption says so.
const roots = { distr: 100, fwd: (value) => Math.sqrt(Math.max(0, value)), bwd: (value) => value * value };
const dashes = [[], [5, 3], [1.5, 3]];

function token(name) {
  // The canvas does not know light-dark(): the browser resolves it on an element's colour.
  const probe = document.createElement("span");
  probe.hidden = true;
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const color = getComputedStyle(probe).color;
  probe.remove();
  return color;
}

function faint(color) {
  return color.replace(/^rgb\(([^)]+)\)$/, "rgba($1, 0.12)");
}

function line(series, place, isBars) {
  const color = token(`series-${place + 1}`);
  return {
    label: series.label,
    stroke: color,
    fill: isBars ? color : place === 0 ? faint(color) : undefined,
    width: isBars ? 0 : 2,
    dash: dashes[place],
    points: { show: false },
    spanGaps: false,
    paths: isBars ? uPlot.paths.bars({ size: [0.9, 100], align: 1 }) : undefined,
  };
}

function moment(seconds, step) {
  if (seconds % 86400 === 0) return day(seconds);
  if (step < 1) return clock(seconds, 23);
  return clock(seconds, step < 60 ? 19 : 16);
}

// A label of the time axis; the first one names the zones.
function label(seconds, place, step) {
  const minutes = -new Date(seconds * 1000).getTimezoneOffset();
  if (!minutes) return moment(seconds, step);
  const zones = place ? ["", ""] : [" UTC", " local"];
  return `${moment(seconds, step)}${zones[0]}\n${moment(seconds + minutes * 60, step)}${zones[1]}`;
}

function axes(data) {
  const common = { stroke: token("muted"), grid: { stroke: token("line"), width: 1 }, ticks: { show: false } };
  const font = `12px ${getComputedStyle(document.body).fontFamily}`;
  return [
    { ...common, font, size: new Date().getTimezoneOffset() ? 44 : 28, space: 88, grid: { show: false }, values: (_, ticks, __, ___, step) => ticks.map((at, place) => label(at, place, step)) },
    { ...common, font, size: 52, incrs: data.series.some((series) => series.unit) ? undefined : whole, filter: (_, ticks) => ticks, values: (_, ticks) => ticks.map(reduced) },
  ];
}

function options(plot, data) {
  const places = data.series.map((series, place) => line(series, place, data.bars));
  return {
    width: plot.clientWidth,
    height: plot.clientHeight,
    padding: [8, 26, 0, 0],
    legend: { show: false },
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    cursor: { drag: { x: false, y: false }, points: { size: 7 }, y: false },
    scales: { x: { time: true }, y: { ...(data.bars ? roots : {}), range: (_, low, high) => [Math.min(0, low ?? 0), Math.max(1, (high ?? 0) * 1.1)] } },
    axes: axes(data),
    series: [{}, ...places],
    hooks: { setCursor: [(chart) => hint(plot, chart)], draw: [(chart) => mark(plot, chart)] },
  };
}

// Shows the figures at the pointer below the chart.
function hint(plot, chart) {
  const data = JSON.parse(plot.dataset.chart);
  const text = plot.parentElement?.querySelector(".hint");
  const place = chart.cursor.idx;
  if (!text || plot.dataset.pick) return;
  if (place == null) return void (text.textContent = "");
  const figures = data.series.map(({ label, values, unit }) => {
    const value = values[place];
    return `${label} ${value == null ? "unknown" : value.toLocaleString("en")}${unit ?? ""}`;
  });
  const beside = localTime(new Date(data.times[place] * 1000));
  text.textContent = `${clock(data.times[place])} UTC${beside && ` (${beside})`}: ${figures.join(", ")}`;
}

// Marks the chosen time on a ruler, and all messages after it, which would be delivered again.
function mark(plot, chart) {
  const field = document.getElementById(plot.dataset.pick ?? "");
  if (!field) return;
  const time = chart.data[0][Number(field.value)];
  const x = Math.round(chart.valToPos(time, "x", true));
  const { left, top, width, height } = chart.bbox;
  const color = token("accent");
  const { ctx } = chart;
  ctx.save();
  ctx.fillStyle = faint(color);
  ctx.fillRect(x, top, left + width - x, height);
  ctx.fillStyle = color;
  ctx.fillRect(x - 1, top, 3, height);
  ctx.restore();
}

function follow(plot, chart) {
  const field = document.getElementById(plot.dataset.pick);
  if (!field) return;
  const choose = (event) => {
    const box = chart.over.getBoundingClientRect();
    field.value = chart.posToIdx(Math.min(Math.max(event.clientX - box.left, 0), box.width));
    field.dispatchEvent(new Event("input", { bubbles: true }));
  };
  chart.over.addEventListener("pointerdown", (event) => {
    chart.over.setPointerCapture(event.pointerId);
    choose(event);
  });
  chart.over.addEventListener("pointermove", (event) => event.buttons && choose(event));
  chart.over.addEventListener("pointerup", () => field.dispatchEvent(new Event("change", { bubbles: true })));
  // The ruler writes its time into the field that is sent; rulers of replaced charts are ignored.
  const target = document.querySelector(`[data-time-of="${CSS.escape(field.id)}"]`);
  field.addEventListener("input", () => {
    if (!plot.isConnected) return;
    chart.redraw(false);
    if (target) target.value = `${new Date(chart.data[0][Number(field.value)] * 1000).toISOString()}`;
  });
  field.addEventListener("change", () => target?.dispatchEvent(new Event("change", { bubbles: true })));
}

function draw(plot) {
  const data = JSON.parse(plot.dataset.chart);
  const columns = [data.times, ...data.series.map((series) => series.values)];
  const chart = charts.get(plot);
  if (chart && chart.series.length === columns.length) {
    chart.setData(columns);
    return;
  }
  chart?.destroy();
  const made = new uPlot(options(plot, data), columns, plot);
  charts.set(plot, made);
  if (plot.dataset.pick) follow(plot, made);
  watch.observe(plot);
}

const watch = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    charts.get(target)?.setSize({ width: target.clientWidth, height: target.clientHeight });
  }
});

function redrawAll() {
  for (const plot of document.querySelectorAll(".plot[data-chart]")) {
    charts.get(plot)?.destroy();
    charts.delete(plot);
    draw(plot);
  }
}

new MutationObserver((changes) => {
  const changed = new Set();
  for (const change of changes) {
    if (change.type === "attributes") changed.add(change.target);
    for (const node of change.addedNodes) {
      for (const plot of node.querySelectorAll?.(".plot[data-chart]") ?? []) changed.add(plot);
    }
  }
  for (const plot of changed) if (plot.isConnected && plot.dataset.chart) draw(plot);
}).observe(document.body, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-chart"] });

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
document.addEventListener("sparq:theme", redrawAll);
for (const plot of document.querySelectorAll(".plot[data-chart]")) draw(plot);
