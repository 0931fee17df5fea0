// Light or dark. In: the system's wish and the person's. Out: `data-theme` on the page.
//
// Without a choice the page follows the system, also while it is open. A choice is kept until it is taken back.

import { $, icon } from "./dom.js";
import { read, write } from "./store.js";

const dark = matchMedia("(prefers-color-scheme: dark)");
const BARS = { light: "#fbfaf8", dark: "#171513" };

// `auto`, `light` or `dark`.
export const chosen = () => read("theme", "auto");

export function choose(theme) {
  write("theme", theme === "auto" ? undefined : theme);
  apply();
}

function apply() {
  const theme = chosen() === "auto" ? (dark.matches ? "dark" : "light") : chosen();
  document.documentElement.dataset.theme = theme;
  document.querySelector("meta[name=theme-color]").content = BARS[theme];
  const button = $("theme"), label = theme === "dark" ? "Light theme" : "Dark theme";
  button.replaceChildren(icon(theme === "dark" ? "sun" : "moon"));
  button.setAttribute("aria-label", label);
  button.title = label;
}

export function start() {
  dark.addEventListener("change", apply);
  $("theme").addEventListener("click", () => {
    const other = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    choose(other === (dark.matches ? "dark" : "light") ? "auto" : other);
  });
  apply();
}
