// Shows /api/fleet and /api/latency, once every two seconds. Text is set as text: nothing of it is markup.
"use strict";

function fill(id, rows) {
  const body = document.getElementById(id);
  body.replaceChildren(...rows.map((cells) => {
    const row = document.createElement("tr");
    for (const cell of cells) {
      const data = document.createElement("td");
      data.textContent = cell ?? "–";
      row.append(data);
    }
    return row;
  }));
}

const milliseconds = (seconds) => seconds === undefined ? undefined : `${(seconds * 1000).toFixed(1)} ms`;
const percent = (share) => share === undefined ? undefined : `${(share * 100).toFixed(0)} %`;

async function load(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

async function show() {
  const status = document.getElementById("status");
  try {
    const [fleet, latency] = await Promise.all([load("api/fleet"), load("api/latency?window=5m")]);
    fill("replicas", fleet.replicas.map((r) => [r.pool, r.replica, r.on_trial ? "ready, on trial" : r.state, r.reason, r.inflight,
      r.signals?.running, r.signals?.waiting, percent(r.signals?.kv_cache_usage)]));
    fill("latency", latency.series.map((s) => [s.route, s.revision, s.duration.count,
      milliseconds(s.ttft.p50), milliseconds(s.ttft["p99"]), milliseconds(s.icl.p50), milliseconds(s.icl["p99"])]));
    const ready = fleet.replicas.filter((r) => r.state === "ready").length;
    status.textContent = `${ready} of ${fleet.replicas.length} replicas ready`;
  } catch (error) {
    status.textContent = `no answer from the gateway (${error.message})`;
  }
  setTimeout(show, 2000);
}

show();
