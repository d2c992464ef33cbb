// Light, dark, or as the system has it.

import { byId } from "./dom.js";

const KEY = "tokenway-theme";
const NEXT = { system: "light", light: "dark", dark: "system" };

function apply(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  byId("theme").textContent = `theme: ${theme}`;
}

export function start() {
  let theme = localStorage.getItem(KEY) ?? "system";
  if (!(theme in NEXT)) theme = "system";
  apply(theme);
  byId("theme").addEventListener("click", () => {
    theme = NEXT[theme];
    localStorage.setItem(KEY, theme);
    apply(theme);
  });
}
