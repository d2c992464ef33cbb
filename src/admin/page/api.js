// The admin API: the token, reading, acting, and the live stream with polling where it does not come.

const KEY = "tokenway-token";
const BASE = "api/v1";

export class Unauthorized extends Error {}

export const hasToken = () => sessionStorage.getItem(KEY) !== null;
export const setToken = (token) => sessionStorage.setItem(KEY, token);
export const dropToken = () => sessionStorage.removeItem(KEY);

function headers(more = {}) {
  const token = sessionStorage.getItem(KEY);
  return token === null ? more : { ...more, authorization: `Bearer ${token}` };
}

async function checked(answer) {
  if (answer.status === 401) throw new Unauthorized("the token is not the gateway's");
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  const error = new Error(body.error?.message ?? `the gateway answered ${answer.status}`);
  error.status = answer.status;
  throw error;
}

export async function load(path) {
  return (await checked(await fetch(`${BASE}${path}`, { headers: headers(), signal: AbortSignal.timeout(SILENT) }))).json();
}

export async function act(path, body) {
  const given = { "x-tokenway-admin": "1", "content-type": "application/json" };
  const request = { method: "POST", headers: headers(given), body: body === undefined ? undefined : JSON.stringify(body) };
  return (await checked(await fetch(`${BASE}${path}`, request))).json();
}

/** Calls `show` with each verdict. EventSource cannot send a token, so the stream is read by hand. */
export async function follow(show, { signal, onMode }) {
  while (!signal.aborted) {
    try {
      const answer = await checked(await fetch(`${BASE}/events`, { headers: headers(), signal }));
      onMode("live");
      await read(answer.body, show);
      throw new Error("the stream ended");
    } catch (error) {
      if (signal.aborted || error instanceof Unauthorized) throw error;
      onMode("polling");
      show(await load("/slo"));
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }
}

/** An event comes each second: a gateway that sends none for this long (ms) stands still, whatever its connection says. */
const SILENT = 5000;

async function heard(reader) {
  let timer;
  const silence = new Promise((_, reject) => { timer = setTimeout(() => reject(new Error("it sends nothing any more")), SILENT); });
  try {
    return await Promise.race([reader.read(), silence]);
  } catch (error) {
    reader.cancel().catch(() => {});
    throw error;
  } finally {
    clearTimeout(timer);
  }
}

async function read(body, show) {
  const decoder = new TextDecoder();
  const reader = body.getReader();
  let text = "";
  for (;;) {
    const { done, value } = await heard(reader);
    if (done) return;
    text += decoder.decode(value, { stream: true });
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      const data = event.split("\n").find((line) => line.startsWith("data: "));
      if (data) show(JSON.parse(data.slice(6)));
    }
  }
}
