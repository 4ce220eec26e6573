// Helpers. Text from a run is inserted as text nodes only: no data is ever parsed as markup.

const byId = (id) => document.getElementById(id);

/** An element with properties, attributes (names with a "-", and "role") and children. */
function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name.includes("-") || name === "role") made.setAttribute(name, String(value));
    else made[name] = value;
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function show(number, digits = 4) {
  if (number === null || number === undefined || Number.isNaN(number)) return "–";
  if (Number.isInteger(number)) return number.toLocaleString("en-US");
  const size = Math.abs(number);
  if (size >= 1000) return Math.round(number).toLocaleString("en-US");
  return size !== 0 && size < 0.001 ? number.toExponential(2) : String(Number(number.toPrecision(digits)));
}

const percent = (share) => (share === null ? "–" : `${Math.round(100 * share)}%`);

const colour = (index) => getComputedStyle(document.documentElement).getPropertyValue(`--c${index % 8}`).trim();

/** Update the page's address. Some browsers throw after a hundred updates in half a minute. */
function remember(place) {
  try {
    history.replaceState(null, "", place);
  } catch (error) {
    if (!(error instanceof DOMException)) throw error;
  }
}

function announce(text) {
  byId("announce").textContent = text;
}

/** The parts of a name matched by the stars of a pattern, or null. */
function match(pattern, name) {
  const parts = pattern.split("*").map((part) => part.replace(/[.+?^${}()|[\]\\]/g, "\\$&"));
  const found = new RegExp(`^${parts.join("(.+)")}$`).exec(name);
  return found === null ? null : found.slice(1);
}
