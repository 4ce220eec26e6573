// The lines of the plots: figures of each run by steps, tokens or seconds.

const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3], [14, 5], [4, 2, 1, 2], [1, 5], [9, 2]];
const AXES = { steps: "step", tokens: "tokens generated", seconds: "seconds of training" };

/** step -> position on the horizontal axis, null if unknown. */
function positions(run, axis) {
  if (axis === "steps") return (step) => step;
  const found = new Map([[0, axis === "tokens" ? run.initial_tokens : 0]]);
  const values = run.series[axis === "tokens" ? "rpo/tokens_generated_total" : "timing/step_total"] ?? [];
  let total = 0;
  run.steps.forEach((step, i) => {
    const value = values[i] ?? null;
    if (axis === "seconds" && value !== null) total += value;
    found.set(step, axis === "seconds" ? (value === null ? null : total) : value);
  });
  return (step) => found.get(step) ?? null;
}

/** The lines of a plot: every figure of every run that has it. */
function linesOf(plot, axis) {
  const kinds = [];
  const lines = [];
  report.runs.forEach((run, r) => {
    const source = plot.evaluated ? run.evaluations : run;
    const position = positions(run, axis);
    const seen = new Set();
    for (const [pattern, label] of Object.entries(plot.figures)) {
      for (const name of Object.keys(source.series)) {
        const stars = match(pattern, name);
        if (stars === null || seen.has(name)) continue;
        seen.add(name);
        const points = source.steps
          .map((step, i) => [position(step), source.series[name][i]])
          .filter(([x, y]) => x !== null && y !== null)
          .sort((a, b) => a[0] - b[0])
          .filter(([x], i, all) => i === 0 || x > all[i - 1][0]);
        if (!points.length) continue;
        const words = label.replace(/\$(\d)/g, (_, n) => stars[n - 1]).replaceAll("_", " ");
        if (!kinds.includes(words)) kinds.push(words);
        lines.push({ run: r, words, kind: kinds.indexOf(words), points });
      }
    }
  });
  const several = report.runs.length > 1;
  for (const line of lines) {
    line.label = !several ? line.words : kinds.length === 1 ? report.runs[line.run].name : `${report.runs[line.run].name}: ${line.words}`;
    line.colour = several ? line.run : line.kind;
    line.dash = DASHES[line.kind % DASHES.length];
  }
  return lines;
}

const table = ({ points }) => [points.map(([x]) => x), points.map(([, y]) => y)];
