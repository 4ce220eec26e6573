// The plots. Later steps of a live run update the existing plots, which keeps zoom and cursor.

const HEIGHT = 220;
const hidden = new Set();
let drawn = [];
let drawnShape = "";

function drawPlots() {
  const axis = byId("axis").value;
  const all = report.plots.map((plot) => ({ plot, axis, lines: linesOf(plot, axis) })).filter(({ lines }) => lines.length);
  const isFlat = ({ lines }) => lines.every((line) => line.points.every(([, y]) => y === 0));
  const flat = all.filter(isFlat).map(({ plot }) => plot.title);
  const wanted = all.filter((one) => !isFlat(one));
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const shape = JSON.stringify([axis, dark, wanted.map(({ plot, lines }) => [plot.title, lines.map((line) => [line.label, few(plot, line)])])]);
  byId("plot-controls").hidden = wanted.length === 0;
  byId("constant").textContent = flat.length ? `Not drawn because always 0: ${flat.join(", ")}.` : "";
  if (shape === drawnShape) {
    wanted.forEach(({ lines }, i) => extend(drawn[i], lines));
    return;
  }
  drawnShape = shape;
  for (const { chart } of drawn) chart.destroy();
  byId("plots").replaceChildren();
  drawn = wanted.map(drawPlot);
}

/** Give a plot its later points; a zoom stays. */
function extend(drawing, lines) {
  const { chart } = drawing;
  const { min, max } = chart.scales.x;
  const xs = chart.data[0];
  drawing.lines = lines;
  chart.setData(uPlot.join(lines.map(table)));
  if (min > xs[0] || max < xs[xs.length - 1]) chart.setScale("x", { min, max });
  readOut(drawing);
}

/** Whether to mark a line's points: evaluations, and lines of one or two points. */
const few = (plot, line) => plot.evaluated || line.points.length < 3;

/** Add a plot to the page; returns its chart, elements and lines. */
function drawPlot({ plot, axis, lines }) {
  const canvas = el("div", { className: "canvas", tabIndex: 0, role: "group", "aria-label": `Plot of ${plot.title}. Press the arrow keys to read values.` });
  const legend = el("div", { className: "legend" });
  byId("plots").append(el("figure", {},
    el("figcaption", {}, el("span", {}, plot.title), el("span", { className: "unit" }, plot.unit)),
    el("p", { className: "hint" }, plot.note), canvas, legend));
  const drawing = { plot, axis, lines, canvas, legend, chart: null };
  drawing.chart = new uPlot(settings(drawing), uPlot.join(lines.map(table)), canvas);
  legend.append(...lines.map((line, i) => legendButton(drawing, line, i)));
  canvas.addEventListener("keydown", (event) => readByKey(event, drawing));
  return drawing;
}

function settings(drawing) {
  const { plot, axis, lines, canvas } = drawing;
  const style = getComputedStyle(document.documentElement);
  const [quiet, grid] = [style.getPropertyValue("--quiet").trim(), style.getPropertyValue("--line").trim()];
  const scale = { stroke: quiet, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, values: (_, ticks) => ticks.map(tick) };
  const whole = axis === "steps" ? { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] } : {};
  const end = { pad: 0.08, soft: 0, mode: plot.evaluated ? 2 : 1 };
  return {
    width: Math.max(200, canvas.clientWidth), height: HEIGHT, legend: { show: false }, cursor: { y: false, drag: { x: true, y: false } },
    scales: { x: { time: false }, y: { range: (_, min, max) => uPlot.rangeNum(min, max, { min: end, max: end }) } },
    axes: [{ ...scale, ...whole, size: 34 }, { ...scale, size: 58 }],
    series: [{}, ...lines.map((line) => ({
      label: line.label, stroke: colour(line.colour), dash: line.dash, width: 2, show: !hidden.has(`${plot.title}/${line.label}`),
      points: { show: few(plot, line), size: 6 },
    }))],
    hooks: { setCursor: [() => readOut(drawing)] },
  };
}

function tick(value) {
  const size = Math.abs(value);
  return size >= 1e6 ? `${value / 1e6}M` : size >= 1e4 ? `${value / 1e3}k` : String(value);
}

function legendButton({ plot, chart }, line, i) {
  const key = `${plot.title}/${line.label}`;
  const swatch = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [name, value] of Object.entries({ width: 22, height: 8, "aria-hidden": "true" })) swatch.setAttribute(name, value);
  const stroke = document.createElementNS("http://www.w3.org/2000/svg", "line");
  const shape = { x1: 0, y1: 4, x2: 22, y2: 4, stroke: colour(line.colour), "stroke-width": 2.5, "stroke-dasharray": line.dash.join(" ") };
  for (const [name, value] of Object.entries(shape)) stroke.setAttribute(name, value);
  swatch.append(stroke);
  const last = line.points[line.points.length - 1][1];
  const button = el("button", { type: "button", "aria-pressed": !hidden.has(key) }, swatch,
    el("span", { className: "name" }, line.label), el("span", { className: "value" }, show(last)));
  button.addEventListener("click", () => {
    if (!hidden.delete(key)) hidden.add(key);
    chart.setSeries(i + 1, { show: !hidden.has(key) });
    button.setAttribute("aria-pressed", String(!hidden.has(key)));
  });
  return button;
}

/** Show the values at the cursor in the legend; without a cursor the last ones. */
function readOut({ chart, lines, legend }) {
  if (chart === null) return;
  lines.forEach((line, i) => {
    const at = chart.cursor.idx;
    const value = at === null || at === undefined ? line.points[line.points.length - 1][1] : (chart.data[i + 1][at] ?? null);
    const place = legend.children[i]?.querySelector(".value");
    if (place) place.textContent = show(value);
  });
}

function readByKey(event, { chart, lines, axis }) {
  const last = chart.data[0].length - 1;
  const now = chart.cursor.idx ?? -1;
  const next = { ArrowRight: Math.min(last, now + 1), ArrowLeft: now < 0 ? last : Math.max(0, now - 1), Home: 0, End: last }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  const x = chart.data[0][next];
  chart.setCursor({ left: chart.valToPos(x, "x"), top: chart.over.clientHeight / 2 });
  const values = lines.map((line, i) => [line.label, chart.data[i + 1][next] ?? null]).filter(([, y]) => y !== null);
  announce(`${AXES[axis]} ${show(x)}: ${values.map(([label, y]) => `${label} ${show(y)}`).join(", ")}`);
}

function fitPlots() {
  for (const { chart, canvas } of drawn) {
    const width = canvas.clientWidth;
    if (width > 0 && width !== chart.width) chart.setSize({ width, height: HEIGHT });
  }
}
