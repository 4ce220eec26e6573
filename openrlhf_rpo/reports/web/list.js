// The list of a run's questions: filtered, sorted, and with only the visible rows in the document.

const ROW = 58;
const list = { run: 0, questions: null, shown: [], active: -1, down: true, elements: new Map() };

const last = (row) => row.visits[row.visits.length - 1] ?? null;
const share = (row) => (row.sampled ? row.rewarded / row.sampled : null);

const FILTERS = {
  all: () => true,
  mixed: (row) => last(row) !== null && last(row).n_rewarded > 0 && last(row).n_rewarded < last(row).n_samples,
  right: (row) => last(row) !== null && last(row).n_rewarded === last(row).n_samples,
  wrong: (row) => last(row) !== null && last(row).n_rewarded === 0,
  bare: (row) => last(row) !== null && last(row).start_bare === 1,
  none: (row) => row.tokens === null,
};
const KEYS = {
  visits: (row) => row.visits.length,
  rewarded: share,
  tokens: (row) => row.tokens,
  written: (row) => row.written,
  versions: (row) => row.versions,
  text: (row) => row.text || row.id,
};

/** The questions to show, in order; missing values come last in either direction. */
function choose() {
  const wanted = byId("find").value.trim().toLowerCase();
  const fits = FILTERS[byId("filter").value];
  const key = KEYS[byId("sort").value];
  const sign = list.down ? -1 : 1;
  const found = list.questions.rows.filter((row) => fits(row) && (!wanted ||
    row.text.toLowerCase().includes(wanted) || row.label.toLowerCase().includes(wanted) || row.id.startsWith(wanted)));
  const keyed = found.map((row) => [key(row), row]);
  keyed.sort(([a, x], [b, y]) => {
    if (a === b) return x.i - y.i;
    if (a === null) return 1;
    if (b === null) return -1;
    return a < b ? -sign : sign;
  });
  return keyed.map(([, row]) => row);
}

function refreshList() {
  if (!list.questions) return;
  const selected = list.shown[list.active];
  list.shown = choose();
  list.active = selected ? list.shown.indexOf(selected) : -1;
  const total = report.runs[list.run].questions.total;
  const all = list.questions.rows.length;
  const left = total > all ? ` (the file has ${show(all)} of the run's ${show(total)})` : "";
  byId("count").textContent = `${show(list.shown.length)} of ${show(all)} questions${left}`;
  byId("rows").style.height = `${list.shown.length * ROW}px`;
  for (const element of list.elements.values()) element.remove();
  list.elements.clear();
  drawRows();
}

function drawRows() {
  const box = byId("list");
  const from = Math.max(0, Math.floor(box.scrollTop / ROW) - 4);
  const to = Math.min(list.shown.length, Math.ceil((box.scrollTop + box.clientHeight) / ROW) + 4);
  for (const [at, element] of list.elements) {
    if (at < from || at >= to) {
      element.remove();
      list.elements.delete(at);
    }
  }
  for (let at = from; at < to; at++) {
    if (list.elements.has(at)) continue;
    const element = drawRow(list.shown[at], at);
    byId("rows").append(element);
    list.elements.set(at, element);
  }
  mark();
}

function drawRow(row, at) {
  const visit = last(row);
  const figures = [
    row.tokens === null ? "no path" : `${show(row.tokens)} tokens from step ${show(row.written)}`,
    `${row.visits.length} visits`,
    `rewarded ${percent(share(row))}`,
    visit === null ? null : visit.outcome.replaceAll("_", " "),
  ];
  const element = el("div", { className: "row", role: "option", id: `row-${at}`, "aria-setsize": list.shown.length, "aria-posinset": at + 1 },
    el("div", { className: "text" }, row.text.replaceAll("\n", " ") || row.id),
    el("div", { className: "figures" }, figures.filter(Boolean).join(" · ")));
  element.style.top = `${at * ROW}px`;
  element.addEventListener("click", () => activate(at, true));
  return element;
}

function mark() {
  for (const [at, element] of list.elements) element.setAttribute("aria-selected", String(at === list.active));
  if (list.elements.has(list.active)) byId("list").setAttribute("aria-activedescendant", `row-${list.active}`);
  else byId("list").removeAttribute("aria-activedescendant");
}

let waiting = 0;

/** Select a row. On a narrow screen its question opens only if ``open``. */
function activate(at, open) {
  if (!list.shown.length) return;
  list.active = Math.max(0, Math.min(at, list.shown.length - 1));
  const box = byId("list");
  const top = list.active * ROW;
  if (top < box.scrollTop) box.scrollTop = top;
  else if (top + ROW > box.scrollTop + box.clientHeight) box.scrollTop = top + ROW - box.clientHeight;
  drawRows();
  const row = list.shown[list.active];
  if (open) byId("browser").classList.add("open");
  clearTimeout(waiting);
  if (opened !== null && opened.row === row && opened.visits === row.visits.length) return;
  waiting = setTimeout(() => openQuestion(list.run, row), open ? 0 : 120);
}

function listKeys(event) {
  const page = Math.max(1, Math.floor(byId("list").clientHeight / ROW) - 1);
  const to = {
    ArrowDown: list.active + 1, ArrowUp: Math.max(0, list.active - 1), PageDown: list.active + page,
    PageUp: Math.max(0, list.active - page), Home: 0, End: list.shown.length - 1,
  }[event.key];
  if (to !== undefined) {
    event.preventDefault();
    activate(to, false);
  } else if (event.key === "Enter" && list.active >= 0) {
    event.preventDefault();
    activate(list.active, true);
    byId("detail").focus();
  }
}

let choices = 0;

/** Show the questions of a run, or why they cannot be shown, unless another run is chosen meanwhile. */
async function chooseRun(index) {
  const mine = ++choices;
  const run = report.runs[index];
  let trouble = "";
  try {
    run.loaded ??= await (run.loading ??= load(index));
  } catch (error) {
    trouble = String(error.message);
  }
  if (mine !== choices) return;
  clearTimeout(waiting);
  Object.assign(list, { run: index, questions: run.loaded ?? new Questions({ ids: [] }), active: -1 });
  opened = null;
  byId("no-questions").hidden = !trouble;
  byId("no-questions").textContent = trouble;
  byId("detail").replaceChildren(el("p", { className: "hint" }, "Choose a question by a click or with the arrow keys. / jumps to the search."));
  refreshList();
}

/** The questions of a run in the file. */
async function load(index) {
  const part = await unpack(`index-${index}`);
  const questions = new Questions(part.names);
  questions.add(part.events);
  return questions;
}
