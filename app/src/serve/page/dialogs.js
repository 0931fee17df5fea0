// What opens over the page: a menu at a button, a question for the API key, a note that can be taken back.
//
// Each closes with Escape and by a click beside it, and the focus goes back to where it was.

import { $, h, icon } from "./dom.js";
import { keepSettings, settings } from "./store.js";

let closeMenu = () => {};

// `entries` are `[icon, label, action, kind]`.
export function menu(button, entries) {
  const reopened = button.getAttribute("aria-expanded") === "true";
  closeMenu();
  if (reopened) return;
  const items = entries.map(([name, label, action, kind]) => h("button", {
    type: "button", role: "menuitem", tabindex: "-1", class: kind ?? "", onclick: () => (closeMenu(), action()),
  }, icon(name), label));
  const box = h("div", { class: "menu", role: "menu" }, ...items);
  const place = button.getBoundingClientRect();
  document.body.append(box);
  const { width, height } = box.getBoundingClientRect();
  box.style.left = `${Math.max(8, Math.min(place.right - width, innerWidth - width - 8))}px`;
  box.style.top = `${place.bottom + height + 12 > innerHeight ? Math.max(8, place.top - height - 4) : place.bottom + 4}px`;
  button.setAttribute("aria-expanded", "true");
  const outside = e => {
    if (!box.contains(e.target) && !button.contains(e.target)) closeMenu();
  };
  const keys = e => {
    const at = items.indexOf(document.activeElement), moves = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1 };
    if (e.key in moves) items[(moves[e.key] + items.length) % items.length].focus();
    else if (e.key === "Escape" || e.key === "Tab") closeMenu();
    else return;
    e.preventDefault();
    e.stopPropagation();
  };
  box.addEventListener("keydown", keys);
  addEventListener("pointerdown", outside, true);
  closeMenu = () => {
    box.remove();
    button.setAttribute("aria-expanded", "false");
    removeEventListener("pointerdown", outside, true);
    closeMenu = () => {};
    button.focus();
  };
  items[0].focus();
}

// A click on the backdrop closes a dialog.
export function dismissable(dialog) {
  dialog.addEventListener("pointerdown", e => {
    if (e.target !== dialog) return;
    const box = dialog.getBoundingClientRect();
    if (e.clientX < box.left || e.clientX > box.right || e.clientY < box.top || e.clientY > box.bottom) dialog.close();
  });
  return dialog;
}

// Asks for the key of the server; true when there is a new one.
export function askKey(why) {
  return new Promise(resolve => {
    const field = h("input", { type: "password", class: "field", autocomplete: "off", "aria-label": "API key", placeholder: "API key", spellcheck: "false" });
    field.value = settings.key;
    const dialog = dismissable(h("dialog", { class: "ask", "aria-labelledby": "ask-title" },
      h("form", { method: "dialog", onsubmit: () => { keepSettings({ key: field.value.trim() }); dialog.returnValue = "kept"; } },
        h("div", { class: "ask-icon" }, icon("key")), h("h2", { id: "ask-title" }, "API key"),
        h("p", {}, why ?? "This server asks for the key it was started with. It stays in this browser."), field,
        h("div", { class: "ask-row" }, h("button", { type: "button", class: "button", onclick: () => dialog.close() }, "Cancel"),
          h("button", { class: "button primary", value: "kept" }, "Use key")))));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "kept");
    });
    document.body.append(dialog);
    dialog.showModal();
    field.focus();
  });
}

export function undoable(text, undo) {
  const note = h("div", { class: "toast", role: "status" }, h("span", {}, text),
    h("button", { type: "button", onclick: () => { note.remove(); undo(); } }, "Undo"));
  $("toasts").append(note);
  setTimeout(() => note.remove(), 7000);
}
