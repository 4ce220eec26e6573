// The summary: notes, tiles and sentences of each run, and the comparison of runs.

function drawSummary() {
  const { runs, notes, against, options } = report.summary;
  const place = byId("summary");
  place.replaceChildren(
    ...report.notes.concat(notes).map((text) => el("p", { className: "note" }, text)),
    el("div", { className: "runs" }, ...runs.map(drawRun)),
  );
  if (against.length) {
    const title = runs.length > 1 ? "Compared with runs without replay" : "Not known";
    place.append(el("div", { className: "against" }, el("h2", {}, title), ...against.map((text) => el("p", {}, text))));
  }
  if (options.rows.length) place.append(differingOptions(options));
}

function drawRun(run, index) {
  const swatch = el("span", { className: "swatch" });
  swatch.style.background = colour(index);
  const tiles = run.tiles.map((tile) =>
    el("div", { className: "tile" },
      el("dt", {}, tile.label),
      el("dd", {}, el("div", { className: "value" }, tile.value), el("div", { className: "more" }, tile.detail))));
  const several = report.runs.length > 1;
  return el("section", { className: "run" },
    several ? el("h2", {}, swatch, run.name) : null,
    report.live ? null : el("p", { className: "place" }, report.runs[index].place),
    ...run.notes.map((text) => el("p", { className: "note" }, text)),
    tiles.length ? el("dl", { className: "tiles" }, ...tiles) : null,
    ...run.sentences.map((text) => el("p", {}, text)));
}

function differingOptions(options) {
  const head = el("tr", {}, el("th", {}, "option"), ...options.runs.map((name) => el("th", { className: "words" }, name)));
  const rows = options.rows.map((row) =>
    el("tr", {}, el("td", {}, row.name), ...row.values.map((value) => el("td", { className: "words" }, value ?? "–"))));
  return el("details", {},
    el("summary", {}, `Options that differ (${rows.length})`),
    el("div", { className: "scroll" }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows))));
}
