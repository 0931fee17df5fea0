// Elements, icons and numbers for people. In: names, properties and children. Out: DOM nodes and short texts.
//
// Children are nodes or strings, and strings only ever become text nodes: there is no way from here to raw HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "css") for (const [key, v] of Object.entries(value)) node.style.setProperty(key, v);
    else if (name === "data") Object.assign(node.dataset, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(3).filter(c => c !== null && c !== undefined && c !== false));
  return node;
}

export const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
export const s = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);
export const $ = id => document.getElementById(id);

// Paths on a 24 by 24 grid, drawn with round strokes of 1.75; those that start with "fill " are filled.
const ICONS = {
  spark: "fill M12 1.8c.9 5.6 3.7 8.9 10.2 10.2-6.5 1.3-9.3 4.6-10.2 10.2C11.1 16.6 8.3 13.3 1.8 12 8.3 10.7 11.1 7.4 12 1.800Z",
  sidebar: "M5.5 4.500h13a2 2 0 0 1 2 2v11a2 2 0 0 1-2 2h-13a2 2 0 0 1-2-2v-11a2 2 0 0 1 2-2Z M9.5 4.500v15",
  menu: "M4 7.500h16 M4 12h16 M4 16.500h10",
  compose: "M11.5 4.500h-5a2 2 0 0 0-2 2v11a2 2 0 0 0 2 2h11a2 2 0 0 0 2-2v-5 M9.5 14.500l.6-3 8-8a1.7 1.7 0 0 1 2.4 2.400l-8 8-3 .6Z",
  search: "M10.8 4.300a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13Z M15.5 15.500l4.5 4.5",
  settings: "M4 7.500h9 M17 7.500h3 M15 5.300a2.2 2.2 0 1 0 0 4.4 2.2 2.2 0 0 0 0-4.400Z M4 16.500h3 M11 16.500h9 M9 14.300a2.2 2.2 0 1 0 0 4.4 2.2 2.2 0 0 0 0-4.400Z",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8Z M12 2.500v2 M12 19.500v2 M2.5 12h2 M19.5 12h2 M5.3 5.300l1.4 1.4 M17.3 17.300l1.4 1.4 M5.3 18.700l1.4-1.4 M17.3 6.700l1.4-1.4",
  moon: "M20 14.200A8.3 8.3 0 0 1 9.8 4a8.3 8.3 0 1 0 10.2 10.200Z",
  chat: "M6.5 5h11a2.5 2.5 0 0 1 2.5 2.500v7a2.5 2.5 0 0 1-2.5 2.500H12l-4.5 3.500V17h-1A2.5 2.5 0 0 1 4 14.500v-7A2.5 2.5 0 0 1 6.5 5Z",
  gauge: "M4.3 18a9 9 0 1 1 15.4 0 M12 14.500l4-5",
  send: "M12 19.500v-14 M5.8 11.2 12 5l6.2 6.2",
  stop: "fill M8 6.500h8A1.5 1.5 0 0 1 17.5 8v8a1.5 1.5 0 0 1-1.5 1.500H8A1.5 1.5 0 0 1 6.5 16V8A1.5 1.5 0 0 1 8 6.500Z",
  copy: "M10.5 8.500h7a2 2 0 0 1 2 2v7a2 2 0 0 1-2 2h-7a2 2 0 0 1-2-2v-7a2 2 0 0 1 2-2Z M15.5 8.500v-2a2 2 0 0 0-2-2h-7a2 2 0 0 0-2 2v7a2 2 0 0 0 2 2h2",
  check: "M5 12.500l4.5 4.500L19 7.5",
  retry: "M19.5 12a7.5 7.5 0 1 1-2.2-5.300L19.5 9 M19.5 4.500V9H15",
  edit: "M5 19l.8-3.700L16.3 4.800a1.9 1.9 0 0 1 2.7 0l.2.2a1.9 1.9 0 0 1 0 2.700L8.7 18.2 5 19Z M14.5 6.600l2.9 2.9",
  trash: "M5 7h14 M9.5 7V5.500a1 1 0 0 1 1-1h3a1 1 0 0 1 1 1V7 M7 7l.7 11a1.5 1.5 0 0 0 1.5 1.500h5.600a1.5 1.5 0 0 0 1.5-1.500L17 7",
  more: "fill M6 10.600a1.4 1.4 0 1 0 0 2.8 1.4 1.4 0 0 0 0-2.800Z M12 10.600a1.4 1.4 0 1 0 0 2.8 1.4 1.4 0 0 0 0-2.800Z M18 10.600a1.4 1.4 0 1 0 0 2.8 1.4 1.4 0 0 0 0-2.800Z",
  down: "M12 5v14 M6 13l6 6 6-6",
  chevron: "M9.5 6.5 15 12l-5.5 5.5",
  close: "M6.5 6.500l11 11 M17.5 6.500l-11 11",
  bulb: "M9.5 18.500h5 M10.5 21h3 M12 3.200a6 6 0 0 0-3.5 10.900c.6.5 1 1.1 1 1.900h5c0-.8.4-1.4 1-1.900A6 6 0 0 0 12 3.200Z",
  download: "M12 4.500v10.5 M7.5 11l4.5 4.5 4.5-4.5 M5 19.500h14",
  upload: "M12 15.500V5 M7.5 9 12 4.5 16.5 9 M5 19.500h14",
  warning: "M12 4.5 2.9 19.500h18.200L12 4.500Z M12 10v4.5 M12 17v.1",
  key: "M8 11.5a4.25 4.25 0 1 0 0 8.5 4.25 4.25 0 0 0 0-8.5Z M11 12.7 19.5 4.2 M16.5 7.2l2.8 2.8 M13.7 10l2.1 2.1",
};

export function icon(name) {
  const filled = ICONS[name].startsWith("fill ");
  const paint = filled ? { fill: "currentColor" } : { fill: "none", stroke: "currentColor", "stroke-width": 1.75, "stroke-linecap": "round", "stroke-linejoin": "round" };
  return s("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true", ...paint }, s("path", { d: filled ? ICONS[name].slice(5) : ICONS[name] }));
}

export const iconButton = (name, label, onclick, properties = {}) =>
  h("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...properties }, icon(name));

export const mac = /Mac|iPhone|iPad/.test(navigator.platform);

export const digits = (v, n) => v.toLocaleString("en", { minimumFractionDigits: n, maximumFractionDigits: n });
export const number = v => v === 0 ? "0" : digits(v, v >= 100 ? 0 : v >= 10 ? 1 : v >= 0.095 ? 2 : 3);
export const percent = v => digits(100 * v, v >= 0.0995 || v === 0 ? 0 : 1) + "%";
export const micros = us => us >= 1e6 ? number(us / 1e6) + " s" : us >= 1e3 ? number(us / 1e3) + " ms" : number(us) + " µs";
export const bytes = b => b >= 1e9 ? number(b / 1e9) + " GB" : b >= 1e6 ? number(b / 1e6) + " MB" : b >= 1e3 ? number(b / 1e3) + " kB" : number(b) + " B";
export const seconds = ms => ms < 950 ? "a moment" : ms < 60_000 ? `${Math.round(ms / 1000)} s` : `${Math.floor(ms / 60_000)} min ${Math.round(ms % 60_000 / 1000)} s`;

// The clipboard needs a secure context; over plain HTTP from another machine a selection does it.
export async function copyText(text) {
  if (navigator.clipboard && isSecureContext) return navigator.clipboard.writeText(text);
  const area = h("textarea", { class: "offscreen", readonly: true });
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (!copied) throw new Error("the browser refused the clipboard");
}

// Shows on a button for a moment that what it does is done.
export function confirmOn(button) {
  const [before, label] = [[...button.childNodes], button.getAttribute("aria-label")];
  if (button.classList.contains("done")) return;
  button.classList.add("done");
  button.replaceChildren(icon("check"), ...before.filter(n => !(n instanceof SVGElement)).map(n => n.cloneNode(true)));
  button.setAttribute("aria-label", "Copied");
  setTimeout(() => {
    button.classList.remove("done");
    button.replaceChildren(...before);
    if (label) button.setAttribute("aria-label", label); else button.removeAttribute("aria-label");
  }, 1400);
}

export function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

// Said by screen readers, seen by nobody.
export function announce(text) {
  $("live").textContent = text;
}

export function toast(text, kind = "") {
  const note = h("div", { class: `toast ${kind}`, role: "status" }, text);
  $("toasts").append(note);
  setTimeout(() => note.classList.add("leaving"), 3600);
  setTimeout(() => note.remove(), 4000);
}

// As high as its text.
export function grow(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight}px`;
}
