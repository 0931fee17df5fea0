// What stays in the browser. In and out: conversations (IndexedDB), settings, drafts and the theme (localStorage).
//
// Where the browser keeps nothing (private windows) everything works until the page is closed, and `lasting` is false.

const DATABASE = "glimmer", TABLE = "conversations";
let database = null;
export let lasting = true;

const wait = request => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

// All conversations that were kept.
export async function open() {
  try {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(TABLE, { keyPath: "id" });
    database = await wait(request);
    database.onversionchange = () => database.close();
    return await wait(database.transaction(TABLE).objectStore(TABLE).getAll());
  } catch {
    lasting = false;
    return [];
  }
}

async function change(work) {
  if (!database) return;
  try {
    const transaction = database.transaction(TABLE, "readwrite");
    work(transaction.objectStore(TABLE));
    await new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onerror = transaction.onabort = () => reject(transaction.error);
    });
  } catch {
    lasting = false;
  }
}

// Tabs of the same browser tell each other what they change.
let tabs = null;
const told = id => tabs?.postMessage(id);
export function onChange(listener) {
  tabs = new BroadcastChannel("glimmer");
  tabs.addEventListener("message", e => listener(e.data));
}

export const get = id => database ? wait(database.transaction(TABLE).objectStore(TABLE).get(id)) : undefined;
export const put = conversation => change(table => table.put(conversation)).then(() => told(conversation.id));
export const remove = id => change(table => table.delete(id)).then(() => told(id));

// Writes that come in bursts: at most one per conversation and `PAUSE`, and the last one always.
const PAUSE = 400;
const due = new Map();
export function putSoon(conversation) {
  if (due.has(conversation.id)) return;
  due.set(conversation.id, setTimeout(() => {
    due.delete(conversation.id);
    put(conversation);
  }, PAUSE));
}
export function forget(id) {
  clearTimeout(due.get(id));
  due.delete(id);
}

export function read(name, otherwise) {
  try {
    const text = localStorage.getItem(`glimmer.${name}`);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}
export function write(name, value) {
  try {
    if (value === undefined || value === "") localStorage.removeItem(`glimmer.${name}`);
    else localStorage.setItem(`glimmer.${name}`, JSON.stringify(value));
  } catch {
    lasting = false;
  }
}

// What is sent with every question; an empty one is left to the model.
export const SAMPLING = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.05, hint: "0 always takes the likeliest word; higher is more daring." },
  { name: "top_p", label: "Top-p", min: 0, max: 1, step: 0.01, hint: "Draws from the likeliest words that together have this share." },
  { name: "top_k", label: "Top-k", min: 0, max: 200, step: 1, hint: "Draws from this many words; 0 means all." },
  { name: "min_p", label: "Min-p", min: 0, max: 1, step: 0.01, hint: "Leaves out what is less likely than this share of the best." },
  { name: "repetition_penalty", label: "Repetition penalty", min: 1, max: 2, step: 0.01, hint: "Above 1 makes words that were said less likely." },
  { name: "max_tokens", label: "Longest answer", min: 1, step: 1, unit: "tokens", hint: "Empty: until the model ends or the context is full." },
  { name: "seed", label: "Seed", min: 0, step: 1, hint: "The same seed gives the same answer." },
];
const DEFAULTS = { system: "", thinking: "auto", key: "", ...Object.fromEntries(SAMPLING.map(s => [s.name, null])) };

export const settings = { ...DEFAULTS, ...read("settings", {}) };
export function keepSettings(changed) {
  Object.assign(settings, changed);
  write("settings", settings);
}
export const resetSettings = () => keepSettings({ ...DEFAULTS, key: settings.key });

// The fields of a request that settings decide.
export function sampling() {
  const out = {};
  for (const { name } of SAMPLING) if (settings[name] !== null && settings[name] !== "") out[name] = Number(settings[name]);
  if (settings.thinking !== "auto") out.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  return out;
}
