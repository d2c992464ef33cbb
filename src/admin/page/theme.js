// Light, dark, or as the system has it.

import { byId } from "./dom.js";

const NEXT = { system: "light", light: "dark", dark: "system" };

export function start(theme = localStorage.getItem("tokenway-theme")) {
  const known = theme in NEXT ? theme : "system";
  localStorage.setItem("tokenway-theme", known);
  document.documentElement.dataset.theme = known;
  byId("theme").textContent = `theme: ${known}`;
  byId("theme").onclick = () => start(NEXT[known]);
}
