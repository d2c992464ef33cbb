// Elements and figures as text. Text is set as text: nothing of it is markup.

const make = (create) => (tag, attributes = {}, ...children) => {
  const element = create(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== undefined && child !== null && child !== false));
  return element;
};

export const el = make((tag) => document.createElement(tag));
export const svg = make((tag) => document.createElementNS("http://www.w3.org/2000/svg", tag));
export const byId = (id) => document.getElementById(id);

const isSame = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName
  && (a.nodeType !== Node.ELEMENT_NODE || a.getAttribute("data-key") === b.getAttribute("data-key"));

/**
 * Makes the children of `parent` look like `children` and touches only what differs, so that selection, focus and hover survive a
 * refresh. Handlers stay those of the old element: what they close over belongs into its `data-key`.
 */
export function put(parent, ...children) {
  const wanted = children.flat().filter((child) => child !== undefined && child !== null && child !== false);
  const keyed = new Map([...parent.childNodes].filter((node) => node.dataset?.key).map((node) => [node.dataset.key, node]));
  wanted.forEach((next, i) => {
    const node = typeof next === "string" ? document.createTextNode(next) : next;
    const known = keyed.get(node.dataset?.key);
    if (known && known !== parent.childNodes[i]) parent.insertBefore(known, parent.childNodes[i] ?? null);
    const now = parent.childNodes[i];
    if (!now) parent.append(node);
    else if (!isSame(now, node)) parent.insertBefore(node, now);
    else if (node.nodeType === Node.TEXT_NODE) { if (now.data !== node.data) now.data = node.data; }
    else if (now !== node) {
      for (const { name } of [...now.attributes]) if (!node.hasAttribute(name)) now.removeAttribute(name);
      for (const { name, value } of node.attributes) if (now.getAttribute(name) !== value) now.setAttribute(name, value);
      put(now, ...node.childNodes);
    }
  });
  while (parent.childNodes.length > wanted.length) parent.lastChild.remove();
}

export const isKnown = (value) => value !== undefined && value !== null;

export function seconds(value) {
  if (!isKnown(value)) return "–";
  if (value >= 99.5) return `${value.toFixed(0)} s`;
  if (value >= 0.9995) return `${value.toFixed(1)} s`;
  if (value >= 0.00995) return `${(value * 1000).toFixed(0)} ms`;
  return value === 0 ? "0" : `${(value * 1000).toFixed(1)} ms`;
}

/** A longer time, in whole units. */
export function span(value) {
  if (value < 120) return `${value.toFixed(0)} s`;
  if (value < 7200) return `${(value / 60).toFixed(0)} min`;
  return value < 172800 ? `${(value / 3600).toFixed(0)} h` : `${(value / 86400).toFixed(0)} days`;
}

/** Time of day, UTC. */
export const clock = (date, isLong = false) => new Date(date).toISOString().slice(11, isLong ? 19 : 16);
export const percent = (share, digits = 0) => (isKnown(share) ? `${(share * 100).toFixed(digits)} %` : "–");
export const number = (value, digits = 0) => (isKnown(value) ? value.toFixed(digits) : "–");
export const rate = (value) => (isKnown(value) ? `${value.toFixed(value < 10 ? 1 : 0)}/s` : "–");
export const words = (name) => name.replaceAll("_", " ");
export const terms = (pairs) => pairs.filter(([, value]) => isKnown(value)).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
export const cells = (pairs) => pairs.map(([label, value, kind]) => el("td", { "data-label": label, class: kind }, value ?? "–"));

/** What the page shows, in its address: range, filters, open route and request. */
const address = new URLSearchParams(location.search);

export const shown = (name) => address.get(name) ?? "";
export function show(changes) {
  for (const [name, value] of Object.entries(changes)) {
    address[value ? "set" : "delete"](name, value || undefined);
  }
  const query = address.toString();
  history.replaceState(null, "", `${location.pathname}${query ? `?${query}` : ""}${location.hash}`);
}
