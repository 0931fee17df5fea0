// The settings. In: what is kept. Out: the same, changed by a person; every change is kept at once.
//
// An empty field is not sent: the model's own value holds.

import { $, grow, h, icon, iconButton, mac } from "./dom.js";
import { dismissable } from "./dialogs.js";
import * as theme from "./theme.js";
import { SAMPLING, keepSettings, lasting, resetSettings, settings } from "./store.js";

const SHORTCUTS = [
  ["Enter", "Send"], ["Shift Enter", "New line"], ["Esc", "Stop"], ["Ctrl K", "New chat"],
  ["/", "Write"], ["↑", "Edit the last message"], ["Ctrl B", "List of chats"], ["Ctrl ,", "Settings"],
];
const dialog = dismissable($("settings"));
let changed = () => {};

export function start(onChange) {
  changed = onChange;
  dialog.addEventListener("close", changed);
}

export function open() {
  draw();
  dialog.showModal();
  grow(dialog.querySelector("textarea"));
}

function keep(values) {
  keepSettings(values);
  changed();
}

// A slider where there is a range, beside it the number; cleared, it is the model's own again.
function row(field) {
  const { name, label, min, max, step, hint, unit } = field;
  const value = h("input", { type: "number", id: `set-${name}`, class: "field number", min, max, step, inputmode: step === 1 ? "numeric" : "decimal", placeholder: "auto", "aria-describedby": `hint-${name}` });
  const slider = max === undefined ? null : h("input", { type: "range", min, max, step, "aria-label": label, tabindex: "-1" });
  const clear = iconButton("close", `${label}: back to automatic`, () => set(null), { class: "icon-button small clear" });
  const box = h("div", { class: "setting" },
    h("label", { for: `set-${name}` }, label, unit ? h("span", { class: "unit" }, ` (${unit})`) : null), h("div", { class: "number-box" }, value, clear),
    slider, h("p", { class: "hint", id: `hint-${name}` }, hint));
  function show() {
    const own = settings[name];
    box.classList.toggle("auto", own === null);
    if (document.activeElement !== value) value.value = own ?? "";
    if (slider) {
      slider.value = own ?? (name === "temperature" ? 0.7 : name === "repetition_penalty" || name === "top_p" ? 1 : 0);
      slider.style.setProperty("--filled", `${100 * (slider.value - min) / (max - min)}%`);
    }
  }
  function set(v) {
    keep({ [name]: v });
    show();
  }
  value.addEventListener("input", () => {
    if (value.value === "" && !value.validity.badInput) set(null);
    else if (value.validity.valid) set(Number(value.value));
  });
  value.addEventListener("blur", show);
  slider?.addEventListener("input", () => set(Number(slider.value)));
  clear.addEventListener("click", () => { value.value = ""; });
  show();
  return box;
}

// One of a few; `names` are the labels by value.
function choice(id, title, names, chosen, choose) {
  return h("fieldset", { class: "choice" }, h("legend", {}, title),
    h("div", { class: "segments" }, ...Object.entries(names).map(([value, label]) => {
      const radio = h("input", { type: "radio", name: id, value, id: `${id}-${value}`, onchange: () => choose(value) });
      radio.checked = chosen === value;
      return [radio, h("label", { for: `${id}-${value}` }, label)];
    })));
}

function draw() {
  const system = h("textarea", { id: "set-system", class: "field", rows: 3, dir: "auto", placeholder: "You are a helpful assistant…" });
  system.value = settings.system;
  system.addEventListener("input", () => {
    keep({ system: system.value });
    grow(system);
  });
  const key = h("input", { id: "set-key", type: "password", class: "field", autocomplete: "off", spellcheck: "false", placeholder: "none" });
  key.value = settings.key;
  key.addEventListener("input", () => keep({ key: key.value.trim() }));
  const name = key => mac ? key.replace("Ctrl", "⌘") : key;
  dialog.replaceChildren(
    h("header", { class: "sheet-head" }, h("h2", { id: "settings-title" }, "Settings"), iconButton("close", "Close settings", () => dialog.close())),
    h("div", { class: "sheet-body" },
      h("section", {}, h("label", { for: "set-system", class: "section-title" }, "System prompt"), system, h("p", { class: "hint" }, "Said to the model before every chat.")),
      h("section", {}, choice("thinking", "Thinking", { auto: "Auto", on: "On", off: "Off" }, settings.thinking, value => keep({ thinking: value })),
        h("p", { class: "hint" }, "For models that can think before they answer.")),
      h("section", {}, choice("appearance", "Appearance", { auto: "System", light: "Light", dark: "Dark" }, theme.chosen(), theme.choose)),
      h("section", {}, h("h3", { class: "section-title" }, "Sampling"), ...SAMPLING.map(row),
        h("button", { type: "button", class: "button", onclick: () => { resetSettings(); changed(); draw(); } }, icon("retry"), "All back to automatic")),
      h("section", {}, h("label", { for: "set-key", class: "section-title" }, "API key"), key,
        h("p", { class: "hint" }, "Only where the server was started with --api-key. Kept in this browser.")),
      h("section", { class: "shortcuts" }, h("h3", { class: "section-title" }, "Keyboard"),
        h("dl", {}, ...SHORTCUTS.flatMap(([keys, what]) => [h("dt", {}, ...name(keys).split(" ").map(k => h("kbd", {}, k))), h("dd", {}, what)]))),
      lasting ? null : h("p", { class: "hint" }, "This browser keeps nothing for this page: chats are gone when it is closed.")));
}
