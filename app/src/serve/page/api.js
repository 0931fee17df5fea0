// The server as functions. In: requests. Out: parsed answers, or an `ApiError` whose `kind` says what a person can do.
//
// Nothing here touches the page. A stream ends by its end, by an error or by its signal, and then calls nothing more.

import { settings } from "./store.js";

// Kinds: offline, loading, key, busy, context, refused, broken.
export class ApiError extends Error {
  constructor(kind, message, more = {}) {
    super(message);
    Object.assign(this, { kind, ...more });
  }
}

const headers = () => settings.key ? { Authorization: `Bearer ${settings.key}` } : {};

async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...options, headers: { ...headers(), ...options.headers } });
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw new ApiError("offline", "Glimmer does not answer. Is it still running?");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

// Seconds, or a date.
function retryAfter(response) {
  const value = response.headers.get("retry-after");
  if (!value) return 2;
  const wait = /^\d+$/.test(value) ? Number(value) : (Date.parse(value) - Date.now()) / 1000;
  return Math.min(120, Math.max(1, Math.ceil(wait || 2)));
}

async function refusal(response) {
  const text = await response.text().catch(() => "");
  let said = "", code = "";
  try {
    const body = JSON.parse(text);
    said = body.error?.message ?? (typeof body.error === "string" ? body.error : "");
    code = body.error?.code ?? body.error?.type ?? "";
    if (response.status === 503 && body.status === "loading") return new ApiError("loading", "The model is still loading.", { retry: 2 });
  } catch {
    said = text.slice(0, 300);
  }
  const { status } = response;
  if (status === 401 || status === 403) return new ApiError("key", said || "This server asks for an API key.", { status });
  if (status === 429) return new ApiError("busy", said || "The server has its hands full.", { status, retry: retryAfter(response) });
  if (status === 503) return new ApiError("loading", said || "The model is not ready yet.", { status, retry: retryAfter(response) });
  if (status === 409) return new ApiError("busy", said || "The model is busy.", { status, retry: retryAfter(response) });
  if (/context/i.test(code) || (status === 400 && /context (length|window|size)|positions|too long/i.test(said))) return new ApiError("context", said, { status });
  return new ApiError(status >= 500 ? "broken" : "refused", said || `The server answered with status ${status}.`, { status });
}

// `{ ready, progress }`; an old server without /health counts as ready.
export async function health() {
  let response;
  try {
    response = await fetch("/health", { cache: "no-store", headers: headers() });
  } catch {
    throw new ApiError("offline", "Glimmer does not answer. Is it still running?");
  }
  const body = await response.json().catch(() => ({}));
  if (body.status === "loading") return { ready: false, progress: typeof body.progress === "number" ? body.progress : null };
  if (response.ok || response.status === 404) return { ready: true };
  if (response.status === 401) throw new ApiError("key", "This server asks for an API key.");
  throw new ApiError("broken", body.error?.message ?? body.status ?? `The server answered with status ${response.status}.`);
}

export async function model() {
  const { data } = await (await ask("/v1/models")).json();
  const first = data?.[0] ?? {};
  return { id: String(first.id ?? "model"), context: Number(first.context_length) || 0, thinks: first.supports_thinking !== false };
}

// Server-sent events from pieces of text, cut anywhere. Returns what `push` feeds; `onData` gets each event's data.
export function events(onData) {
  let rest = "", data = [];
  return text => {
    rest += text;
    // A carriage return at the end may be half of a line's end.
    const complete = rest.endsWith("\r") ? rest.slice(0, -1) : rest;
    const lines = complete.split(/\r\n|\n|\r/);
    rest = lines.pop() + rest.slice(complete.length);
    for (const line of lines) {
      if (line === "") {
        if (data.length) onData(data.join("\n"));
        data = [];
      } else if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
    }
  };
}

// Streams one answer. `on` has `reasoning(text)`, `content(text)`, `usage(numbers)`, `timings(numbers)` and `finish(reason)`.
export async function chat(body, signal, on) {
  const response = await ask("/v1/chat/completions", {
    method: "POST", signal, headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
  });
  let failed = null, finished = false;
  const push = events(data => {
    if (data === "[DONE]") {
      finished = true;
      return;
    }
    let chunk;
    try {
      chunk = JSON.parse(data);
    } catch {
      failed = new ApiError("broken", "The server sent an event that is not JSON.");
      return;
    }
    if (chunk.error) {
      const said = chunk.error.message ?? "The server gave up.";
      failed = new ApiError(/context/i.test(chunk.error.code ?? said) ? "context" : "broken", said);
      return;
    }
    const choice = chunk.choices?.[0];
    if (choice?.delta?.reasoning_content) on.reasoning(choice.delta.reasoning_content);
    if (choice?.delta?.content) on.content(choice.delta.content);
    if (chunk.usage) on.usage(chunk.usage);
    if (chunk.timings) on.timings(chunk.timings);
    if (choice?.finish_reason) {
      finished = true;
      on.finish(choice.finish_reason);
    }
  });
  const reader = response.body.getReader(), decoder = new TextDecoder();
  try {
    while (!failed) {
      const { done, value } = await reader.read();
      if (done) break;
      push(decoder.decode(value, { stream: true }));
    }
  } catch (e) {
    if (e.name === "AbortError" || signal.aborted) throw e;
    throw new ApiError("offline", "The connection broke in the middle of the answer.");
  }
  if (failed) {
    reader.cancel().catch(() => {});
    throw failed;
  }
  if (!finished) throw new ApiError("offline", "The connection ended in the middle of the answer.");
}

export const profile = async signal => (await ask("/profile", { signal })).json();

// Sums over labels by name, of a text in Prometheus' form.
export function samples(text) {
  const out = new Map();
  for (const line of text.split("\n")) {
    const m = /^([a-zA-Z_:][\w:]*)(\{[^}]*\})?\s+(\S+)/.exec(line);
    if (m && !m[2]?.includes("le=")) out.set(m[1], (out.get(m[1]) ?? 0) + Number(m[3]));
  }
  return out;
}

export const metrics = async signal => samples(await (await ask("/metrics", { signal })).text());
