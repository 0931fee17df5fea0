// The list of conversations. In: what is kept and a search. Out: choices, new names, deletions, files.
//
// The list is drawn from the state anew with each change of it; nothing else remembers what it shows.

import { $, copyText, download, h, iconButton, toast } from "./dom.js";
import { menu, undoable } from "./dialogs.js";
import { fromJson, matches, toJson, toMarkdown } from "./conversation.js";
import * as state from "./state.js";
import { read, write } from "./store.js";

const narrow = matchMedia("(max-width: 860px)");
const body = document.body;
let wanted = "", leave = () => {};

export function start(actions) {
  leave = actions.showChat;
  for (const id of ["toggle-sidebar", "close-sidebar"]) $(id).addEventListener("click", toggle);
  $("shade").addEventListener("click", close);
  for (const id of ["new-chat", "new-chat-top"]) $(id).addEventListener("click", actions.newChat);
  $("search").addEventListener("input", e => {
    wanted = e.target.value;
    draw();
  });
  $("search").addEventListener("keydown", e => {
    if (e.key !== "Escape" || !wanted) return;
    e.target.value = wanted = "";
    e.stopPropagation();
    draw();
  });
  $("all-chats").addEventListener("click", e => menu(e.currentTarget, [
    ["upload", "Import from a file", () => $("file").click()],
    ["download", "Export all as JSON", () => download("glimmer-chats.json", "application/json", toJson(state.listed()))],
    ["trash", "Delete all chats", () => undoable("All chats deleted.", state.removeAll()), "danger"],
  ]));
  $("file").addEventListener("change", load);
  state.on("list", draw);
  $("sidebar").addEventListener("keydown", e => {
    if (e.key !== "Escape" || !narrow.matches) return;
    e.stopPropagation();
    close();
  });
  narrow.addEventListener("change", label);
  body.classList.toggle("no-sidebar", read("sidebar", "") === "closed");
  label();
}

const isOpen = () => narrow.matches ? body.classList.contains("drawer") : !body.classList.contains("no-sidebar");
function label() {
  $("toggle-sidebar").setAttribute("aria-expanded", String(isOpen()));
  $("sidebar").inert = !isOpen();
}
export function toggle() {
  body.classList.toggle(narrow.matches ? "drawer" : "no-sidebar");
  if (!narrow.matches) write("sidebar", isOpen() ? undefined : "closed");
  label();
  if (narrow.matches && isOpen()) $("new-chat").focus();
}
export function close() {
  if (!narrow.matches || !isOpen()) return;
  body.classList.remove("drawer");
  label();
  $("toggle-sidebar").focus();
}

async function load(e) {
  const [file] = e.target.files;
  e.target.value = "";
  if (!file) return;
  try {
    const chats = fromJson(await file.text());
    state.take(chats);
    toast(chats.length === 1 ? "One chat imported." : `${chats.length} chats imported.`);
  } catch (error) {
    toast(error.message, "bad");
  }
}

const fileName = c => (c.title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "chat").slice(0, 60);
const markdown = c => download(`${fileName(c)}.md`, "text/markdown", toMarkdown(c));
const json = c => download(`${fileName(c)}.json`, "application/json", toJson([c]));

function age(time) {
  const day = new Date().setHours(0, 0, 0, 0), ms = 86_400_000;
  return time >= day ? "Today" : time >= day - ms ? "Yesterday" : time >= day - 7 * ms ? "Last seven days" : "Earlier";
}

function draw() {
  const found = state.listed().filter(c => matches(c, wanted)), out = [];
  let group = "";
  for (const c of found) {
    if (age(c.updated) !== group) out.push(h("h2", {}, group = age(c.updated)));
    out.push(entry(c));
  }
  if (!found.length) out.push(h("p", { class: "nothing" }, wanted ? "Nothing found." : "Your chats will be kept here, in this browser."));
  const focused = document.activeElement?.closest?.(".chat-entry")?.dataset.id;
  $("chats").replaceChildren(...out);
  if (focused) $("chats").querySelector(`[data-id="${focused}"] .chat-name`)?.focus();
  $("title").textContent = state.state.current.title || "New chat";
  document.title = state.state.current.title ? `${state.state.current.title} · Glimmer` : "Glimmer";
}

function entry(c) {
  const chosen = c === state.state.current;
  const row = h("div", { class: `chat-entry${chosen ? " chosen" : ""}`, data: { id: c.id } },
    h("button", { type: "button", class: "chat-name", "aria-current": chosen ? "true" : null, dir: "auto", title: c.title, onclick: () => { state.select(c.id); leave(); close(); } },
      state.state.runs.has(c.id) ? h("span", { class: "pulse", "aria-label": "answering" }) : null, c.title || "New chat"),
    iconButton("more", `More for ${c.title}`, e => menu(e.currentTarget, [
      ["edit", "Rename", () => rename(c, row)],
      ["download", "Export as Markdown", () => markdown(c)],
      ["download", "Export as JSON", () => json(c)],
      ["trash", "Delete", () => undoable("Chat deleted.", state.remove(c)), "danger"],
    ]), { class: "icon-button small", "aria-haspopup": "menu", "aria-expanded": "false" }));
  return row;
}

function rename(c, row) {
  const field = h("input", { class: "rename", "aria-label": "Name of the chat", maxlength: "200", enterkeyhint: "done" });
  field.value = c.title;
  let done = false;
  const finish = keep => {
    if (done) return;
    done = true;
    if (keep && field.value.trim() && field.value.trim() !== c.title) state.rename(c, field.value); else draw();
  };
  field.addEventListener("keydown", e => {
    if (e.key === "Enter") finish(true);
    else if (e.key === "Escape") finish(false);
    e.stopPropagation();
  });
  field.addEventListener("blur", () => finish(true));
  row.replaceChildren(field);
  field.focus();
  field.select();
}

export const exportCurrent = button => menu(button, [
  ["download", "Export as Markdown", () => markdown(state.state.current)],
  ["download", "Export as JSON", () => json(state.state.current)],
  ["copy", "Copy as Markdown", () => copyText(toMarkdown(state.state.current)).then(() => toast("Copied."), e => toast(`Could not copy: ${e.message}`, "bad"))],
]);
