// The page. In: the address, keys and the server's health. Out: one of two views, and everything that others start.
//
// The address says what is shown (`#chat=ID`, `#performance`), so that a reload and the back button work.

import * as api from "./api.js";
import * as composer from "./composer.js";
import * as messages from "./messages.js";
import * as performance from "./performance.js";
import * as settings from "./settings.js";
import * as sidebar from "./sidebar.js";
import * as state from "./state.js";
import * as theme from "./theme.js";
import { askKey } from "./dialogs.js";
import { $, announce, h, icon, mac, percent } from "./dom.js";
import { read, write } from "./store.js";

const STARTERS = [
  ["spark", "A bedtime story", "Tell me a story about a frog and a bicycle."],
  ["moon", "A little magic", "Write a short story about a lighthouse keeper who befriends a star."],
  ["bulb", "An explanation", "Explain why the sky is blue, as you would to a curious child."],
  ["edit", "Some code", "Write a Python function that checks whether a word is a palindrome, with an example."],
];

const onPerformance = () => location.hash === "#performance";

function route() {
  const chat = /^#chat=([A-Za-z0-9]+)$/.exec(location.hash);
  if (chat && chat[1] !== state.state.current.id) state.select(chat[1]);
  const tab = onPerformance();
  $("chat-view").hidden = tab;
  $("performance-view").hidden = !tab;
  $("to-chat").setAttribute("aria-current", tab ? "false" : "page");
  $("to-performance").setAttribute("aria-current", tab ? "page" : "false");
  document.body.classList.toggle("on-performance", tab);
  if (tab) performance.open(); else performance.close();
  address();
}

// The address of the conversation that is shown, without a step back for each message.
function address() {
  const { id } = state.state.current, wanted = state.state.all.has(id) ? `#chat=${id}` : "#";
  write("last", state.state.all.has(id) ? id : "");
  if (!onPerformance() && location.hash !== wanted && !(wanted === "#" && location.hash === "")) history.replaceState(null, "", wanted);
}

function showChat() {
  if (!onPerformance()) return;
  const { id } = state.state.current;
  location.hash = state.state.all.has(id) ? `#chat=${id}` : "#";
}

function newChat() {
  showChat();
  state.fresh();
  sidebar.close();
  $("input").focus();
}

function keys(e) {
  const command = e.ctrlKey || e.metaKey, typing = /^(INPUT|TEXTAREA|SELECT)$/.test(e.target.tagName);
  if (document.querySelector("dialog[open]")) return;
  if (command && !e.shiftKey && !e.altKey && e.key.toLowerCase() === "k") newChat();
  else if (command && e.key.toLowerCase() === "b") sidebar.toggle();
  else if (command && e.key === ",") settings.open();
  else if (e.key === "Escape" && state.run()) state.stop();
  else if (e.key === "/" && !typing && !command && !e.altKey && !onPerformance()) $("input").focus();
  else return;
  e.preventDefault();
}

const wait = ms => new Promise(resolve => setTimeout(resolve, ms));

// Over everything until the model is there; tells what it waits for.
async function ready() {
  const screen = $("loading"), note = $("loading-note"), bar = $("loading-bar");
  const later = setTimeout(() => { screen.hidden = false; }, 250);
  for (let tries = 0; ; tries++) {
    try {
      const { ready, progress } = await api.health();
      if (ready) break;
      note.textContent = typeof progress === "number" ? `Loading the model, ${percent(progress)}` : "Loading the model…";
      bar.classList.toggle("unsure", typeof progress !== "number");
      bar.firstElementChild.style.width = typeof progress === "number" ? `${100 * progress}%` : "";
    } catch (e) {
      if (e.kind === "key") break;
      note.textContent = e.message;
      bar.classList.add("unsure");
    }
    screen.hidden = false;
    await wait(tries < 20 ? 400 : 1500);
  }
  clearTimeout(later);
  screen.hidden = true;
}

async function meet() {
  const dot = $("model");
  try {
    const model = await api.model();
    state.setModel(model);
    dot.className = "model";
    $("model-name").textContent = model.id;
    dot.title = model.context ? `${model.id}, ${model.context.toLocaleString("en")} tokens of context` : model.id;
    const here = /^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(location.hostname);
    $("empty-model").textContent = `Running ${model.id} on ${here ? "your own machine" : location.hostname}. Nothing you write goes any further.`;
    $("banner").hidden = true;
  } catch (e) {
    dot.className = "model away";
    $("model-name").textContent = e.kind === "key" ? "API key needed" : "not connected";
    if (e.kind === "key" && await askKey()) return meet();
  }
}

async function enterKey() {
  if (!await askKey()) return;
  await meet();
  messages.regenerateLast();
}

// Whether the server is still there, asked now and then while the page is looked at.
async function watch() {
  for (let pause = 15_000; ; ) {
    await wait(pause);
    if (document.hidden) continue;
    let gone = false;
    try {
      if (!(await api.health()).ready) await ready();
    } catch (e) {
      gone = e.kind === "offline";
    }
    const was = !$("banner").hidden;
    $("banner").hidden = !gone;
    if (gone !== was) announce(gone ? "Glimmer does not answer." : "Glimmer is back.");
    if (was && !gone) await meet();
    pause = gone ? 3000 : 15_000;
  }
}

async function start() {
  for (const place of document.querySelectorAll("[data-icon]")) place.prepend(icon(place.dataset.icon));
  theme.start();
  if (mac) for (const key of document.querySelectorAll("kbd")) key.textContent = key.textContent.replace("Ctrl ", "⌘");
  $("starters").replaceChildren(...STARTERS.map(([name, title, text]) => h("button", { type: "button", class: "starter", onclick: () => composer.ask(text) },
    icon(name), h("strong", {}, title), h("span", {}, text))));
  messages.start({ askKey: enterKey, newChat });
  composer.start();
  sidebar.start({ newChat, showChat });
  settings.start(composer.update);
  performance.start();
  state.on("show", () => {
    messages.show();
    address();
    $("export").hidden = !state.state.all.has(state.state.current.id);
  });
  $("export").addEventListener("click", e => sidebar.exportCurrent(e.currentTarget));
  $("open-settings").addEventListener("click", settings.open);
  addEventListener("keydown", keys);
  addEventListener("hashchange", route);
  const asked = /^#chat=([A-Za-z0-9]+)$/.exec(location.hash)?.[1];
  await state.load(asked ?? (onPerformance() ? read("last", "") : ""));
  await ready();
  route();
  if (!matchMedia("(pointer: coarse)").matches && !onPerformance()) $("input").focus();
  await meet();
  watch();
}

start();
