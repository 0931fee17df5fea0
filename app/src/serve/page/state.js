// What the page knows and what can be done with it. In: wishes of a person. Out: events `list`, `show`, `progress`,
// `settled` and `model` for the views.
//
// A run is one answer under way. It belongs to its conversation, not to the view: one can look elsewhere meanwhile.

import * as api from "./api.js";
import * as conversations from "./conversation.js";
import * as store from "./store.js";

const bus = new EventTarget();
export const on = (type, listener) => bus.addEventListener(type, e => listener(e.detail));
const emit = (type, detail) => bus.dispatchEvent(new CustomEvent(type, { detail }));

export const state = {
  all: new Map(),
  current: conversations.create(),
  // By conversation's id.
  runs: new Map(),
  model: { id: "", context: 0, thinks: true },
};

export async function load(wanted) {
  for (const c of await store.open()) {
    // An answer that was under way when the page went away.
    for (const m of Object.values(c.messages)) if (m.role === "assistant" && !m.finish && !m.error) m.finish = "stopped";
    state.all.set(c.id, c);
  }
  if (state.all.has(wanted)) state.current = state.all.get(wanted);
  emit("list");
  emit("show");
  store.onChange(changed);
}

// Another tab changed a conversation, or deleted it.
async function changed(id) {
  if (state.runs.has(id)) return;
  const now = await store.get(id), shown = state.current.id === id;
  if (now) state.all.set(id, now); else state.all.delete(id);
  if (shown) state.current = now ?? conversations.create();
  emit("list");
  if (shown) emit("show");
}

export function setModel(model) {
  state.model = model;
  emit("model");
}

export const listed = () => [...state.all.values()].sort((a, b) => b.updated - a.updated);
export const run = () => state.runs.get(state.current.id);

export function select(id) {
  if (!state.all.has(id)) return;
  state.current = state.all.get(id);
  emit("list");
  emit("show");
}

export function fresh() {
  if (Object.keys(state.current.messages).length) state.current = conversations.create();
  emit("list");
  emit("show");
}

export function rename(conversation, title) {
  if (!title.trim()) return;
  conversation.title = title.trim().slice(0, 200);
  conversation.named = true;
  store.put(conversation);
  emit("list");
  emit("show");
}

// Returns what takes it back.
export function remove(conversation) {
  stop(conversation);
  store.forget(conversation.id);
  state.all.delete(conversation.id);
  store.remove(conversation.id);
  store.write(`draft.${conversation.id}`, undefined);
  if (state.current === conversation) state.current = conversations.create();
  emit("list");
  emit("show");
  return () => {
    keep(conversation);
    select(conversation.id);
  };
}

export function removeAll() {
  const all = listed(), { current } = state;
  for (const c of all) remove(c);
  return () => {
    for (const c of all) keep(c);
    select(state.all.has(current.id) ? current.id : all[0]?.id);
  };
}

export function take(imported) {
  for (const c of imported) keep(c);
  emit("list");
  if (imported.length) select(imported[0].id);
}

function keep(conversation) {
  state.all.set(conversation.id, conversation);
  store.put(conversation);
}

export function send(text) {
  const conversation = state.current;
  conversations.add(conversation, conversation.leaf, { role: "user", content: text });
  keep(conversation);
  return answer(conversation, conversation.leaf);
}

// The same question again, the other answer kept as an alternative; an answer that failed is replaced.
export function regenerate(message) {
  const conversation = state.current;
  if (message.error && !message.content) delete conversation.messages[message.id];
  return answer(conversation, message.parent);
}

export function edit(message, text) {
  const conversation = state.current;
  conversations.add(conversation, message.parent, { role: "user", content: text });
  return answer(conversation, conversation.leaf);
}

export function turn(message, by) {
  const all = conversations.siblings(state.current, message), at = all.indexOf(message) + by;
  if (!all[at] || run()) return;
  conversations.choose(state.current, all[at]);
  store.put(state.current);
  emit("show");
}

export function stop(conversation = state.current) {
  state.runs.get(conversation.id)?.controller.abort();
}

const pause = (ms, signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, ms);
  signal.addEventListener("abort", () => {
    clearTimeout(timer);
    reject(new DOMException("stopped", "AbortError"));
  }, { once: true });
});

// About what a text costs, until the server says it exactly.
const estimate = text => Math.ceil(text.length / 4) + 4;

function expected(conversation, parent) {
  let tokens = estimate(store.settings.system);
  for (const m of conversations.path(conversation, parent)) tokens = m.context || tokens + estimate(m.content);
  return tokens;
}

const PATIENCE = 20;

async function answer(conversation, parent) {
  if (state.runs.has(conversation.id)) return;
  const message = conversations.add(conversation, parent, { role: "assistant", reasoning: "", model: state.model.id });
  const run = { conversation, message, controller: new AbortController(), started: Date.now(), tokens: 0, prompt: expected(conversation, parent), first: 0, last: 0, thinking: 0, waiting: null };
  state.runs.set(conversation.id, run);
  keep(conversation);
  emit("list");
  emit("show");
  try {
    for (let tries = 1; ; tries++) {
      try {
        await stream(run, parent);
        break;
      } catch (e) {
        const again = e.retry && tries < PATIENCE && !message.content && !message.reasoning;
        if (!again) throw e;
        run.waiting = { until: Date.now() + e.retry * 1000, why: e.message };
        emit("progress", run);
        await pause(e.retry * 1000, run.controller.signal);
        run.waiting = null;
      }
    }
  } catch (e) {
    if (run.controller.signal.aborted) message.finish = "stopped";
    else message.error = { kind: e.kind ?? "broken", text: e.message };
  }
  if (run.thinking && message.thought === undefined) message.thought = Date.now() - run.thinking;
  message.speed ||= speedOf(run);
  message.tokens = run.tokens;
  message.context = run.prompt + run.tokens;
  state.runs.delete(conversation.id);
  // A conversation that was deleted meanwhile stays deleted.
  if (state.all.has(conversation.id)) {
    store.forget(conversation.id);
    store.put(conversation);
  }
  emit("settled", run);
  emit("list");
}

function stream(run, parent) {
  const { message, conversation } = run;
  const token = () => {
    run.last = performance.now();
    run.first ||= run.last;
    run.tokens++;
    store.putSoon(conversation);
    emit("progress", run);
  };
  const body = { model: state.model.id, messages: conversations.prompt(conversation, parent, store.settings.system), ...store.sampling() };
  return api.chat(body, run.controller.signal, {
    reasoning(text) {
      run.thinking ||= Date.now();
      message.reasoning += text;
      token();
    },
    content(text) {
      if (run.thinking && message.thought === undefined) message.thought = Date.now() - run.thinking;
      message.content += text;
      token();
    },
    usage(numbers) {
      run.tokens = numbers.completion_tokens ?? run.tokens;
      run.prompt = numbers.prompt_tokens ?? run.prompt;
      message.reused = numbers.prompt_tokens_details?.cached_tokens ?? 0;
    },
    timings(numbers) {
      message.speed = numbers.tokens_per_second ?? 0;
      message.first = numbers.first_token_seconds ?? 0;
    },
    finish(reason) {
      message.finish = reason;
    },
  });
}

// Tokens a second since the first one; what came in one piece has no speed.
export function speedOf(run) {
  return run.tokens > 1 && run.last - run.first > 10 ? (run.tokens - 1) / (run.last - run.first) * 1000 : 0;
}

// Tokens in the context of what is shown.
export function contextUsed() {
  const active = run();
  if (active) return active.prompt + active.tokens;
  const last = conversations.path(state.current).at(-1);
  return last ? last.context || expected(state.current, last.id) : 0;
}
