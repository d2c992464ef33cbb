// Elements and figures as text. Text is set as text: nothing of it is markup.

const make = (create) => (tag, attributes = {}, ...children) => {
  const element = create(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== undefined && child !== null));
  return element;
};

export const el = make((tag) => document.createElement(tag));
export const svg = make((tag) => document.createElementNS("http://www.w3.org/2000/svg", tag));
export const byId = (id) => document.getElementById(id);

export function put(parent, ...children) {
  parent.replaceChildren(...children.flat());
}

/** Draws again what holds the focus, and gives it back to the element of the same text. */
export function keepFocus(parent, draw) {
  const focused = parent.contains(document.activeElement) ? document.activeElement.textContent : null;
  draw();
  if (focused !== null) [...parent.querySelectorAll("button, a")].find((element) => element.textContent === focused)?.focus();
}

export function seconds(value) {
  if (value === undefined || value === null) return "–";
  if (value >= 99.5) return `${value.toFixed(0)} s`;
  if (value >= 0.9995) return `${value.toFixed(1)} s`;
  if (value >= 0.00995) return `${(value * 1000).toFixed(0)} ms`;
  return `${(value * 1000).toFixed(1)} ms`;
}

/** A longer time, in whole units. */
export function span(value) {
  if (value < 120) return `${value.toFixed(0)} s`;
  if (value < 7200) return `${(value / 60).toFixed(0)} min`;
  return value < 172800 ? `${(value / 3600).toFixed(0)} h` : `${(value / 86400).toFixed(0)} days`;
}

export const percent = (share, digits = 0) =>
  share === undefined || share === null ? "–" : `${(share * 100).toFixed(digits)} %`;

export const number = (value, digits = 0) =>
  value === undefined || value === null ? "–" : value.toFixed(digits);

export function ago(time) {
  const passed = (Date.now() - Date.parse(time)) / 1000;
  return Number.isFinite(passed) ? `${span(Math.max(0, passed))} ago` : "";
}

export const terms = (pairs) =>
  pairs.filter(([, value]) => value !== undefined).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));

export const cells = (pairs) => pairs.map(([label, value]) => el("td", { "data-label": label }, value ?? "–"));
