// Where one writes. In: keys and the state of the run. Out: questions sent, runs stopped, drafts kept.
//
// What is being written is kept per conversation with every key, so that a reload or a look elsewhere loses nothing.

import { $, digits, grow, icon, number } from "./dom.js";
import { editLast, toEnd } from "./messages.js";
import * as state from "./state.js";
import * as store from "./store.js";

const input = $("input"), button = $("send"), think = $("think");
const touch = matchMedia("(pointer: coarse)");
const THINKING = { auto: ["Thinking: auto", "on"], on: ["Thinking: on", "off"], off: ["Thinking: off", "auto"] };

// A conversation without messages has no name to keep a draft under.
const draftName = () => state.state.all.has(state.state.current.id) ? `draft.${state.state.current.id}` : "draft";

export function start() {
  $("composer").addEventListener("submit", e => {
    e.preventDefault();
    if (state.run()) state.stop(); else submit();
  });
  input.addEventListener("input", () => {
    store.write(draftName(), input.value);
    update();
  });
  input.addEventListener("keydown", e => {
    // On a touch keyboard Enter is the only way to a new line.
    if (e.key === "Enter" && !e.shiftKey && !e.isComposing && !touch.matches) {
      e.preventDefault();
      if (!state.run()) submit();
    } else if (e.key === "ArrowUp" && input.value === "" && editLast()) e.preventDefault();
  });
  $("composer").addEventListener("click", e => {
    if (!e.target.closest("button, textarea")) input.focus();
  });
  think.addEventListener("click", () => {
    store.keepSettings({ thinking: THINKING[store.settings.thinking][1] });
    update();
  });
  state.on("show", () => {
    input.value = store.read(draftName(), "");
    update();
  });
  let due = 0;
  state.on("progress", () => {
    due ||= requestAnimationFrame(() => {
      due = 0;
      stats();
    });
  });
  state.on("settled", update);
  state.on("model", update);
  addEventListener("resize", () => grow(input));
  update();
}

function submit() {
  const text = input.value.trim();
  if (!text || state.run()) return;
  input.value = "";
  store.write(draftName(), "");
  ask(text);
}

export function ask(text) {
  toEnd();
  state.send(text);
  update();
}

export function update() {
  const running = Boolean(state.run());
  button.replaceChildren(icon(running ? "stop" : "send"));
  const label = running ? "Stop (Esc)" : "Send (Enter)";
  button.setAttribute("aria-label", label);
  button.title = label;
  button.classList.toggle("stops", running);
  button.disabled = !running && input.value.trim() === "";
  const { thinking } = store.settings;
  think.hidden = !state.state.model.thinks;
  think.querySelector("span").textContent = THINKING[thinking][0];
  think.setAttribute("aria-label", `${THINKING[thinking][0]}. Change.`);
  think.classList.toggle("on", thinking === "on");
  think.classList.toggle("off", thinking === "off");
  grow(input);
  stats();
}

function stats() {
  const run = state.run(), { context } = state.state.model, used = state.contextUsed();
  const speed = run ? state.speedOf(run) : 0;
  $("speed").textContent = speed ? `${number(speed)} tok/s` : run ? "…" : "";
  $("context").hidden = !context || !used;
  if (!context || !used) return;
  const share = Math.min(1, used / context), bar = $("context-bar");
  bar.firstElementChild.style.width = `${100 * share}%`;
  bar.setAttribute("aria-valuenow", String(Math.round(100 * share)));
  $("context").classList.toggle("tight", share > 0.85);
  $("context-text").textContent = `${digits(Math.min(used, context), 0)} of ${digits(context, 0)} tokens`;
}
