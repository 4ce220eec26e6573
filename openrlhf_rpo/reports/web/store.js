// The data of the runs: from the file, unpacked on demand, or from the server, step by step.

const PART_MISSING = "is missing from this file: it was cut short or edited.";
const report = JSON.parse(byId("document").textContent);

/** The JSON of a compressed part of the file. */
async function unpack(id) {
  const element = byId(id);
  if (element === null) throw new Error(`Part ${id} ${PART_MISSING}`);
  if (typeof DecompressionStream === "undefined") throw new Error("Questions need a browser from 2023 or later.");
  const raw = atob(element.textContent);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

/** A run's questions and their histories: loaded once from the file, or extended by the server with every step. */
class Questions {
  constructor(names) {
    this.rows = names.ids.map((id, i) => ({
      i, id, text: names.texts[i], label: names.labels[i],
      tokens: null, score: null, reward: null, written: null, versions: 0,
      visits: [], sampled: 0, rewarded: 0,
    }));
  }

  add(events) {
    const { paths, visits } = events;
    for (let k = 0; k < paths.q.length; k++) {
      const row = this.rows[paths.q[k]];
      row.tokens = paths.tokens[k];
      row.score = paths.score[k];
      row.reward = paths.reward[k];
      row.written = paths.step[k];
      row.versions++;
    }
    const names = Object.keys(visits).filter((name) => name !== "q");
    for (let k = 0; k < visits.q.length; k++) {
      const row = this.rows[visits.q[k]];
      const visit = {};
      for (const name of names) visit[name] = visits[name][k];
      row.visits.push(visit);
      row.sampled += visit.n_samples;
      row.rewarded += visit.n_rewarded;
    }
  }
}

const details = new Map();

/** The details of a question: from its part of the file, or from the server. */
async function detailsOf(runIndex, row) {
  if (report.live) {
    const answer = await fetch(`question?id=${encodeURIComponent(row.id)}`);
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
  }
  const id = `details-${runIndex}-${Math.floor(row.i / report.part)}`;
  if (!details.has(id)) {
    if (details.size >= 8) details.delete(details.keys().next().value);
    details.set(id, await unpack(id));
  }
  return details.get(id)[row.i % report.part];
}

/** Append later steps to a run; figures missing from a step are null. */
function addSteps(run, later) {
  const before = run.steps.length;
  run.steps.push(...later.steps);
  for (const name of new Set([...Object.keys(run.series), ...Object.keys(later.series)])) {
    const values = run.series[name] ?? (run.series[name] = new Array(before).fill(null));
    values.push(...(later.series[name] ?? new Array(later.steps.length).fill(null)));
  }
}
