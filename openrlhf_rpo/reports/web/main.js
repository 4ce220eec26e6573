// Start: tabs, controls, and the requests of a live page to its server.

const TABS = ["overview", "questions"];

function showTab(name, focus = false) {
  for (const tab of TABS) {
    const chosen = tab === name;
    byId(tab).hidden = !chosen;
    byId(`tab-${tab}`).setAttribute("aria-selected", String(chosen));
    byId(`tab-${tab}`).tabIndex = chosen ? 0 : -1;
    if (chosen && focus) byId(`tab-${tab}`).focus();
  }
  if (name === "overview") {
    remember("#overview");
    fitPlots();
  } else {
    openList();
  }
}

function openList() {
  const withQuestions = report.runs.map((run, i) => [run, i]).filter(([run]) => run.questions);
  byId("browser").hidden = withQuestions.length === 0;
  if (!withQuestions.length) {
    byId("no-questions").hidden = false;
    byId("no-questions").textContent = report.live ? "No questions yet." : "None of these runs has a path cache, so there are no questions to show.";
    return;
  }
  if (byId("run").options.length !== withQuestions.length) {
    byId("run").replaceChildren(...withQuestions.map(([run, i]) => el("option", { value: String(i) }, run.name)));
    byId("run-label").hidden = withQuestions.length < 2;
  }
  if (list.questions) drawRows();
  else chooseRun(Number(byId("run").value));
}

/** Open the question of an address such as #questions/RUN/ID. */
async function followAddress() {
  const [tab, run, id] = location.hash.slice(1).split("/").map(decodeURIComponent);
  if (tab !== "questions") return;
  showTab("questions");
  const index = Number(run);
  if (id === undefined || !report.runs[index]?.questions) return;
  byId("run").value = index;
  await chooseRun(index);
  if (list.run !== index) return;
  const at = list.shown.findIndex((row) => row.id === id);
  if (at >= 0) activate(at, true);
}

function wire() {
  for (const [i, name] of TABS.entries()) {
    const tab = byId(`tab-${name}`);
    tab.addEventListener("click", () => showTab(name));
    tab.addEventListener("keydown", (event) => {
      if (event.key === "ArrowRight" || event.key === "ArrowLeft") showTab(TABS[1 - i], true);
    });
  }
  byId("axis").addEventListener("change", drawPlots);
  byId("run").addEventListener("change", () => chooseRun(Number(byId("run").value)));
  for (const id of ["find", "filter", "sort"]) byId(id).addEventListener("input", refreshList);
  byId("direction").addEventListener("click", () => {
    list.down = !list.down;
    byId("direction").textContent = list.down ? "↓" : "↑";
    byId("direction").setAttribute("aria-label", list.down ? "Largest first" : "Smallest first");
    refreshList();
  });
  byId("list").addEventListener("scroll", drawRows, { passive: true });
  byId("list").addEventListener("keydown", listKeys);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && byId("browser").classList.contains("open")) closeQuestion();
    if (event.key === "/" && !byId("questions").hidden && event.target.tagName !== "INPUT") {
      event.preventDefault();
      byId("find").focus();
    }
  });
  new ResizeObserver(() => {
    fitPlots();
    if (!byId("questions").hidden) drawRows();
  }).observe(document.body);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
}

function drawAll() {
  drawSummary();
  drawPlots();
}

// ── A live page ──

const live = { after: -1, mark: "" };

async function ask() {
  const state = byId("state");
  try {
    const answer = await fetch(`data?after=${live.after}&mark=${live.mark}`);
    if (!answer.ok) throw new Error(await answer.text());
    const news = await answer.json();
    take(news);
    state.classList.toggle("trouble", news.trouble);
  } catch (error) {
    state.classList.add("trouble");
    state.textContent = error instanceof TypeError ? "The server of this page does not answer: is `openrlhf-rpo watch` still running?" : String(error.message);
  }
  setTimeout(ask, 1000 * report.live.interval);
}

/** Add new steps; reload everything if the run went back before the last shown step. */
function take(news) {
  const run = report.runs[0];
  if (news.from < 0) {
    Object.assign(run, { steps: [], series: {}, evaluations: { steps: [], series: {} }, questions: null, loaded: null });
    list.questions = null;
  }
  const state = byId("state");
  state.textContent = news.state;
  if (news.missing) return;
  const changed = news.steps.length > 0 || news.from < 0 || news.evaluations.steps.length !== run.evaluations.steps.length;
  Object.assign(run, { initial_tokens: news.initial_tokens, evaluations: news.evaluations });
  addSteps(run, news);
  if (news.names) {
    run.loaded = new Questions(news.names);
    run.questions = { total: news.names.ids.length };
  }
  if (run.loaded) run.loaded.add(news.events);
  report.summary = news.summary;
  Object.assign(live, { after: news.after, mark: news.mark });
  if (!changed) return;
  drawAll();
  if (byId("questions").hidden) return;
  if (!list.questions) return openList();
  refreshList();
  if (opened !== null && opened.visits !== opened.row.visits.length) openQuestion(0, opened.row);
}

// ── Start ──

byId("title").textContent = report.title;
byId("made").textContent = report.made;
wire();
if (report.live) {
  byId("state").textContent = "Reading the run…";
  ask();
} else {
  drawAll();
  followAddress();
}
document.documentElement.dataset.ready = "yes";
