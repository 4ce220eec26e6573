// One question: its lineage, with kept and new text marked, and its groups with their samples.

let opened = null;

async function openQuestion(runIndex, row) {
  const place = byId("detail");
  const mine = (opened = { row, visits: row.visits.length });
  remember(`#questions/${runIndex}/${encodeURIComponent(row.id)}`);
  const slow = setTimeout(() => {
    if (mine === opened) place.replaceChildren(el("p", { className: "hint" }, "Reading the question…"));
  }, 150);
  let found;
  try {
    found = await detailsOf(runIndex, row);
  } catch (error) {
    if (mine !== opened) return;
    opened = null;
    place.replaceChildren(el("p", { className: "note" }, String(error.message)));
    return;
  } finally {
    clearTimeout(slow);
  }
  if (mine !== opened) return;
  const back = el("button", { className: "back", type: "button" }, "← All questions");
  back.addEventListener("click", closeQuestion);
  const paths = wholeTexts(found.paths);
  const body = el("div", {}, back,
    el("h2", {}, `Question ${row.id}`),
    el("div", { className: "text-block" }, (found.question && (found.question.text || found.question.prompt)) || "The cache does not store the question's text."),
    el("p", { className: "hint" }, row.label ? `Label ${row.label}` : ""),
    ...lineage(paths, found.as_ids ?? report.runs[runIndex].questions.as_ids),
    ...groups(found, row));
  place.replaceChildren(body);
}

function closeQuestion() {
  byId("browser").classList.remove("open");
  byId("list").focus();
  drawRows();
}

/** Add the whole text of every path: the head shared with its parent, then its own text. */
function wholeTexts(paths) {
  for (const path of paths) {
    path.whole = (path.parent < 0 ? "" : paths[path.parent].whole.slice(0, path.shared)) + path.text;
  }
  return paths;
}

/** [from, to, step, label] of the parts of a path, in order; the step is null if the path that wrote a part is missing. */
function partsOf(paths, path) {
  const parts = [];
  let end = path.whole.length;
  let at = path;
  for (;;) {
    if (at.kept < end) {
      parts.unshift([at.kept, end, at.step, at.step === 0 ? "initial" : `step ${at.step}`]);
      end = at.kept;
    }
    if (at.parent < 0) break;
    at = paths[at.parent];
  }
  if (end > 0) parts.unshift([0, end, null, at.elsewhere ? "from another slot" : "pruned"]);
  return parts;
}

function lineage(paths, asIds) {
  if (!paths.length) return [el("h3", {}, "Lineage"), el("p", {}, "No path was ever cached for this question.")];
  const text = el("div", { className: "text-block", tabIndex: 0, role: "region", "aria-label": "Text of the path", id: "path-text" });
  const note = el("p", { className: "hint" });
  const titles = ["step", "tokens", "kept", "new", "cut", "score", "reward", "ended by"];
  const rows = paths.map((path) => {
    const parent = path.parent < 0 ? null : paths[path.parent];
    const cut = parent === null ? null : parent.tokens - path.kept_tokens;
    const cells = [path.step, path.tokens, path.kept_tokens, path.tokens - path.kept_tokens, cut, path.score, path.reward];
    return el("tr", { className: "choice", role: "row" }, ...cells.map((cell) => el("td", {}, show(cell))),
      el("td", { className: "words" }, path.finish === "length" ? "length limit" : "stop"));
  });
  const choosePath = (index, focus) => {
    rows.forEach((line, i) => {
      line.setAttribute("aria-selected", String(i === index));
      line.tabIndex = i === index ? 0 : -1;
    });
    if (focus) rows[index].focus();
    showPath(paths, paths[index], text, note);
  };
  rows.forEach((line, i) => {
    line.addEventListener("click", () => choosePath(i, true));
    line.addEventListener("keydown", (event) => {
      const to = { ArrowDown: i + 1, ArrowUp: i - 1, Home: 0, End: rows.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      choosePath(Math.max(0, Math.min(to, rows.length - 1)), true);
    });
  });
  const table = el("table", { role: "grid", "aria-label": "Cached paths, oldest first" },
    el("thead", {}, el("tr", {}, ...titles.map((title) => el("th", {}, title)))), el("tbody", {}, ...rows));
  choosePath(rows.length - 1, false);
  const ids = asIds ? el("p", { className: "hint" }, "Token ids instead of text: the model's tokenizer was not found.") : null;
  return [el("h3", {}, `Lineage: ${paths.length} cached path${paths.length > 1 ? "s" : ""}`),
    el("div", { className: "scroll" }, table), note, ids, text];
}

function showPath(paths, path, place, note) {
  const parts = partsOf(paths, path);
  const spans = parts.map(([from, to, step, label], i) => {
    const newest = i === parts.length - 1 && step === path.step;
    return el("span", { className: newest ? "part new" : "part older", "data-label": newest ? `new, ${label}` : `kept, ${label}` }, path.whole.slice(from, to));
  });
  const parent = path.parent < 0 ? null : paths[path.parent];
  const gone = parent === null ? "" : parent.whole.slice(path.kept);
  if (gone) spans.push("\n", el("span", { className: "part gone", "data-label": `dropped from step ${parent.step}` }, gone));
  place.replaceChildren(...spans);
  const head = parent === null ? "Generated from scratch." : `Kept ${show(path.kept_tokens)} tokens of the path of step ${parent.step}, generated ${show(path.tokens - path.kept_tokens)}.`;
  const origin = path.elsewhere ? "a path in another slot, such as a wrong or an imported one." : "a path that was pruned.";
  note.textContent = path.parent < 0 && path.kept > 0 ? `Its prefix came from ${origin}` : head;
}

// Why a question was asked (types.py, Visit).
const REASONS = {
  unknown: "",
  turn: "its turn",
  replay: "to replay its path",
  unfinished: "to go on with it",
  signal: "for its signal",
};

function groups(found, row) {
  const title = el("h3", {}, `Groups: ${row.visits.length} visit${row.visits.length === 1 ? "" : "s"}`);
  if (!row.visits.length) return [title, el("p", {}, "This question was not visited yet.")];
  const titles = ["step", "asked", "cut", "prefix", "samples", "rewarded", "shortest", "outcome"];
  const rows = row.visits.map((visit) => el("tr", {},
    el("td", {}, show(visit.step)),
    el("td", { className: "words" }, REASONS[visit.asked]),
    ...["cut", "prefix_length", "n_samples", "n_rewarded", "shortest_path"].map((name) => el("td", {}, show(visit[name]))),
    el("td", { className: "words" }, [
      visit.outcome.replaceAll("_", " "), ...(visit.slot ? [`from the path in slot ${visit.slot}`] : []), ...(visit.start_bare ? ["next starts bare"] : []),
    ].join(", "))));
  const table = el("div", { className: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, ...titles.map((name) => el("th", { className: ["asked", "outcome"].includes(name) ? "words" : "" }, name)))),
    el("tbody", {}, ...rows)));
  return [title, table, ...Object.entries(found.samples).flatMap(([step, samples]) => sampled(step, samples))];
}

function sampled(step, samples) {
  return [el("h3", {}, `Samples of step ${step}`), ...samples.map((sample, i) => {
    const words = [`${i + 1}`, `score ${show(sample.score)}`, `reward ${show(sample.reward)}`, `${show(sample.prefix)} + ${show(sample.tokens)} tokens`,
      sample.finish === "length" ? "hit the limit" : null, sample.trained_on ? null : "not trained on"];
    const box = el("details", { className: "sample" }, el("summary", {}, words.filter(Boolean).join(" · ")));
    box.addEventListener("toggle", () => {
      if (box.open && box.children.length === 1) box.append(el("div", { className: "text-block" }, sample.text));
    });
    return box;
  })];
}
