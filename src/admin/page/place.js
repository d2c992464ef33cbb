// Where the reader is, in the address: time range, route, list of requests, open request. A link shows the same again.

const KNOWN = ["range", "route", "show", "of", "request"];

function read() {
  return new URLSearchParams(location.hash.startsWith("#?") ? location.hash.slice(2) : "");
}

export const place = (name) => read().get(name) ?? "";

/** Sets parts of the place; an empty one leaves the address. The browser's history is not filled with them. */
export function go(changes) {
  const next = read();
  for (const [name, value] of Object.entries(changes)) {
    if (value && KNOWN.includes(name)) next.set(name, value);
    else next.delete(name);
  }
  history.replaceState(null, "", next.size > 0 ? `#?${next}` : location.pathname);
}
