// The conversation on the screen. In: the branch that is shown and runs that go on. Out: one article per message.
//
// An article lives as long as its message is shown; a run changes the last one alone. The view follows the end of an
// answer until the person scrolls away, and again once they are back at the end.

import { Answer, codeOf, plainText } from "./render.js";
import { $, announce, confirmOn, copyText, digits, grow, h, icon, iconButton, micros, number, seconds, toast } from "./dom.js";
import * as state from "./state.js";
import { path, siblings } from "./conversation.js";

const scroller = $("scroller"), list = $("messages"), jump = $("jump");
const views = new Map();
let follows = true, act = {};

// `actions` has what errors offer: `askKey()`, `newChat()`.
export function start(actions) {
  act = actions;
  scroller.addEventListener("scroll", scrolled, { passive: true });
  jump.addEventListener("click", toEnd);
  list.addEventListener("click", async e => {
    const button = e.target.closest(".copy-code");
    if (button) await copied(button, codeOf(button));
  });
  // Opening a fold must not move what is read; a keyboard that opens must not hide the end.
  new ResizeObserver(() => state.run() ? keepUp() : measure()).observe(list);
  new ResizeObserver(keepUp).observe(scroller);
  let frame = 0;
  state.on("progress", () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      const run = state.run();
      if (run) views.get(run.message.id)?.update(run);
      keepUp();
    });
  });
  state.on("settled", run => {
    if (run.conversation !== state.state.current) return;
    show();
    keepUp();
    const { message } = run;
    announce(message.error ? message.error.text : message.finish === "stopped" ? "Stopped." : `Answer complete, ${message.tokens} tokens.`);
  });
  setInterval(() => {
    const run = state.run();
    if (run) views.get(run.message.id)?.clock(run);
  }, 250);
}

async function copied(button, text) {
  try {
    await copyText(text);
    confirmOn(button);
    announce("Copied.");
  } catch (e) {
    toast(`Could not copy: ${e.message}`, "bad");
  }
}

const atEnd = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 48;
let height = 0, top = 0;
function scrolled() {
  // Upwards and not because the answer became shorter: a person does that.
  if (scroller.scrollTop < top - 2 && scroller.scrollHeight >= height) follows = false;
  else if (atEnd()) follows = true;
  measure();
}
function keepUp() {
  if (follows) scroller.scrollTop = views.size ? scroller.scrollHeight : 0;
  measure();
}
function measure() {
  height = scroller.scrollHeight;
  top = scroller.scrollTop;
  jump.hidden = views.size === 0 || atEnd();
}
export function toEnd() {
  follows = true;
  keepUp();
}

let shown = null;
export function show() {
  const conversation = state.state.current, branch = path(conversation), run = state.run();
  const kept = new Set(branch.map(m => m.id));
  for (const [id, view] of views) {
    if (kept.has(id)) continue;
    view.root.remove();
    views.delete(id);
  }
  branch.forEach((message, n) => {
    let view = views.get(message.id);
    if (!view) views.set(message.id, view = message.role === "user" ? new Question(message) : new Reply(message));
    if (list.children[n] !== view.root) list.insertBefore(view.root, list.children[n] ?? null);
    view.root.classList.toggle("last", n === branch.length - 1);
    view.update(run?.message === message ? run : null);
  });
  $("empty").hidden = branch.length > 0;
  if (shown !== conversation || run) toEnd();
  shown = conversation;
}

export function editLast() {
  const last = path(state.state.current).findLast(m => m.role === "user");
  if (last && !state.run()) views.get(last.id).edit();
  return Boolean(last);
}

export function regenerateLast() {
  const last = path(state.state.current).at(-1);
  if (last?.role === "assistant" && !state.run()) state.regenerate(last);
}

// Which of several alternatives is shown.
function branches(message) {
  const all = siblings(state.state.current, message), at = all.indexOf(message);
  if (all.length < 2) return null;
  const turn = (by, label) => {
    state.turn(message, by);
    views.get(all[at + by].id)?.root.querySelector(`.branches [aria-label="${label}"]`)?.focus();
  };
  return h("div", { class: "branches", role: "group", "aria-label": "Alternatives" },
    iconButton("chevron", "Previous alternative", () => turn(-1, "Previous alternative"), { class: "icon-button small back", disabled: at === 0 }),
    h("span", {}, `${at + 1} / ${all.length}`),
    iconButton("chevron", "Next alternative", () => turn(1, "Next alternative"), { class: "icon-button small", disabled: at === all.length - 1 }));
}

const small = (name, label, onclick) => iconButton(name, label, onclick, { class: "icon-button small" });

class Question {
  constructor(message) {
    this.message = message;
    this.bubble = h("div", { class: "bubble", dir: "auto" }, ...plainText(message.content));
    this.actions = h("div", { class: "actions" });
    this.root = h("article", { class: "message question", "aria-label": "You" }, this.bubble, this.actions);
  }
  update() {
    this.actions.replaceChildren(...[branches(this.message),
      small("edit", "Edit message", () => this.edit()),
      small("copy", "Copy message", e => copied(e.currentTarget, this.message.content))].filter(Boolean));
  }
  edit() {
    if (this.root.classList.contains("editing") || state.run()) return;
    const area = h("textarea", { class: "edit-area", "aria-label": "Edit message", rows: 1, dir: "auto" });
    area.value = this.message.content;
    const close = () => {
      this.root.classList.remove("editing");
      form.replaceWith(this.bubble);
      $("input").focus();
    };
    const submit = () => {
      const text = area.value.trim();
      if (!text) return;
      close();
      if (text !== this.message.content) state.edit(this.message, text);
    };
    const form = h("form", { class: "edit", onsubmit: e => (e.preventDefault(), submit()) }, area,
      h("div", { class: "edit-row" }, h("span", { class: "hint" }, "The earlier version is kept."),
        h("button", { type: "button", class: "button", onclick: close }, "Cancel"), h("button", { type: "submit", class: "button primary" }, "Send")));
    area.addEventListener("keydown", e => {
      if (e.key === "Escape") close();
      else if (e.key === "Enter" && !e.shiftKey && !e.isComposing) submit();
      else return;
      e.preventDefault();
      e.stopPropagation();
    });
    area.addEventListener("input", () => grow(area));
    this.root.classList.add("editing");
    this.bubble.replaceWith(form);
    grow(area);
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  }
}

const FINISH = {
  stopped: "Stopped",
  content_filter: "Ended by a filter",
};

class Reply {
  constructor(message) {
    this.message = message;
    this.thoughtLabel = h("span", { class: "thought-label" });
    this.thought = new Answer(h("div", { class: "thought-text markdown" }));
    this.thinking = h("details", { class: "thinking", hidden: true },
      h("summary", {}, icon("bulb"), this.thoughtLabel, icon("chevron")), this.thought.root);
    this.answer = new Answer(h("div", { class: "answer markdown" }));
    this.status = h("div", { class: "status", hidden: true });
    this.error = h("div", { class: "failure", role: "alert", hidden: true });
    this.actions = h("div", { class: "actions" });
    this.root = h("article", { class: "message reply", "aria-label": "Glimmer" },
      this.thinking, this.answer.root, this.status, this.error, this.actions);
  }

  update(run) {
    const { message } = this;
    this.root.classList.toggle("running", Boolean(run));
    this.root.setAttribute("aria-busy", String(Boolean(run)));
    this.thinking.hidden = !message.reasoning;
    if (message.reasoning) this.thought.update(message.reasoning.trim());
    this.answer.update(message.content.trimStart());
    this.answer.root.classList.toggle("caret", Boolean(run && message.content));
    this.clock(run);
    if (run) {
      this.error.hidden = true;
      this.actions.replaceChildren();
      return;
    }
    this.status.hidden = true;
    this.fail(message.error);
    this.actions.replaceChildren(...[
      branches(message),
      message.content ? small("copy", "Copy answer", e => copied(e.currentTarget, message.content)) : null,
      message.error ? null : small("retry", "Regenerate", () => state.regenerate(message)),
      h("span", { class: "facts", title: this.more() }, this.facts())].filter(Boolean));
  }

  clock(run) {
    const { message } = this, thinks = Boolean(run?.thinking && message.thought === undefined);
    this.thinking.classList.toggle("live", thinks);
    const label = thinks ? `Thinking… ${Date.now() - run.thinking < 950 ? "" : seconds(Date.now() - run.thinking)}` : message.thought === undefined ? "Reasoning" : `Thought for ${seconds(message.thought)}`;
    if (this.thoughtLabel.textContent !== label) this.thoughtLabel.textContent = label;
    if (!run) return;
    const waits = !message.content && !message.reasoning;
    this.status.hidden = !waits;
    if (!waits) return;
    const text = run.waiting ? `${run.waiting.why} Trying again in ${Math.max(1, Math.ceil((run.waiting.until - Date.now()) / 1000))} s.` : Date.now() - run.started > 2000 ? `Reading… ${seconds(Date.now() - run.started)}` : "";
    if (this.status.dataset.text === text) return;
    this.status.dataset.text = text;
    this.status.replaceChildren(h("span", { class: "dots", "aria-hidden": "true" }, h("i", {}), h("i", {}), h("i", {})), h("span", {}, text || "Reading…"));
  }

  facts() {
    const { message } = this, { context } = state.state.model, out = [];
    if (message.finish === "length") out.push(context && message.context >= context - 1 ? "The context is full" : "Reached the longest answer allowed");
    else if (FINISH[message.finish]) out.push(FINISH[message.finish]);
    if (message.tokens) out.push(`${digits(message.tokens, 0)} ${message.tokens === 1 ? "token" : "tokens"}`);
    if (message.speed) out.push(`${number(message.speed)} tok/s`);
    return out.join(" · ");
  }

  more() {
    const { first, reused } = this.message, out = [];
    if (first) out.push(`First token after ${micros(first * 1e6)}`);
    if (reused) out.push(`${digits(reused, 0)} tokens of the prompt came from the cache`);
    return out.join(". ");
  }

  fail(error) {
    this.error.hidden = !error;
    if (!error) return;
    const again = h("button", { type: "button", class: "button", onclick: () => state.regenerate(this.message) }, "Try again");
    const [title, ...more] = {
      offline: ["Connection lost", again],
      key: ["API key needed", h("button", { type: "button", class: "button primary", onclick: act.askKey }, "Enter key"), again],
      busy: ["The server is busy", again],
      loading: ["The model is still loading", again],
      context: ["The context is full", h("button", { type: "button", class: "button primary", onclick: act.newChat }, "New chat"), again],
      refused: ["The server refused", again],
    }[error.kind] ?? ["Something went wrong", again];
    this.error.replaceChildren(icon("warning"), h("div", {}, h("strong", {}, title), h("p", { dir: "auto" }, error.text), h("div", { class: "failure-row" }, ...more)));
  }
}
