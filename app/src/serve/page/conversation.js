// A conversation as a tree. In: what people and the model say. Out: the branch that is shown, and texts to keep it elsewhere.
//
// Nothing that was said is lost: an edited question or another answer is a sibling, and `leaf` says which branch is shown.
// A message is `{ id, parent, role, content, … }`; `parent` of a first one is null.

export const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(9)), b => b.toString(36).padStart(2, "0")).join("").slice(0, 16);

export function create() {
  const now = Date.now();
  return { id: newId(), title: "", named: false, created: now, updated: now, messages: {}, leaf: null };
}

export function add(conversation, parent, fields) {
  const message = { id: newId(), parent, created: Date.now(), content: "", ...fields };
  conversation.messages[message.id] = message;
  conversation.leaf = message.id;
  conversation.updated = message.created;
  if (!conversation.named && !conversation.title && message.role === "user") conversation.title = titleOf(message.content);
  return message;
}

// From the first message to `leaf`.
export function path(conversation, leaf = conversation.leaf) {
  const out = [];
  for (let m = conversation.messages[leaf]; m; m = conversation.messages[m.parent]) out.push(m);
  return out.reverse();
}

// What stands in place of a message, itself included, oldest first.
export function siblings(conversation, message) {
  return Object.values(conversation.messages).filter(m => m.parent === message.parent && m.role === message.role).sort((a, b) => a.created - b.created);
}

// Shows the branch that goes through a message, by its latest replies.
export function choose(conversation, message) {
  let at = message;
  for (;;) {
    const replies = Object.values(conversation.messages).filter(m => m.parent === at.id).sort((a, b) => b.created - a.created);
    if (!replies.length) break;
    at = replies[0];
  }
  conversation.leaf = at.id;
}

export function titleOf(text) {
  const line = text.trim().split(/\s+/).join(" ").replace(/^[#>*`\s]+/, "");
  if (line.length <= 48) return line || "New chat";
  const cut = line.slice(0, 48);
  return cut.slice(0, Math.max(cut.lastIndexOf(" "), 32)).trimEnd() + "…";
}

// What the model reads to answer after `parent`.
export function prompt(conversation, parent, system) {
  const said = path(conversation, parent).filter(m => m.content !== "").map(m => ({ role: m.role, content: m.content }));
  return system.trim() ? [{ role: "system", content: system }, ...said] : said;
}

export function matches(conversation, wanted) {
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return true;
  const text = [conversation.title, ...Object.values(conversation.messages).map(m => m.content)].join("\n").toLowerCase();
  return words.every(w => text.includes(w));
}

// A text as a fence that nothing inside it can close.
function fenced(text) {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(m => m[0].length));
  const fence = "`".repeat(longest + 1);
  return `${fence}text\n${text}\n${fence}`;
}

export function toMarkdown(conversation) {
  const out = [`# ${conversation.title || "Chat"}`];
  for (const m of path(conversation)) {
    out.push(`## ${m.role === "user" ? "You" : m.model ? `Glimmer (${m.model})` : "Glimmer"}`);
    if (m.reasoning) out.push(`<details><summary>Reasoning</summary>\n\n${fenced(m.reasoning)}\n\n</details>`);
    out.push(m.content);
  }
  return out.join("\n\n") + "\n";
}

export const toJson = conversations => JSON.stringify({ format: "glimmer-chats", version: 1, conversations }, null, 2) + "\n";

const FIELDS = { reasoning: "string", model: "string", finish: "string", thought: "number", speed: "number", tokens: "number", context: "number" };

// Reads what `toJson` wrote. What it returns holds known fields of known types and no loops, whatever the file says.
export function fromJson(text) {
  let data;
  try {
    data = JSON.parse(text);
  } catch {
    throw new Error("The file is not JSON.");
  }
  if (data?.format !== "glimmer-chats" || !Array.isArray(data.conversations)) throw new Error("The file is not an export of Glimmer's chats.");
  return data.conversations.map((c, n) => {
    const out = create();
    const entries = Object.values(c?.messages ?? {});
    for (const m of entries) {
      if (!m || !/^[A-Za-z0-9]{1,64}$/.test(m.id) || typeof m.content !== "string" || !["user", "assistant"].includes(m.role)) throw new Error(`Chat ${n + 1} of the file has a message without id, role or content.`);
      const kept = { id: m.id, parent: typeof m.parent === "string" ? m.parent : null, role: m.role, content: m.content, created: Number(m.created) || out.created };
      for (const [name, type] of Object.entries(FIELDS)) if (typeof m[name] === type) kept[name] = m[name];
      out.messages[m.id] = kept;
    }
    for (const m of Object.values(out.messages)) if (m.parent !== null && !Object.hasOwn(out.messages, m.parent)) m.parent = null;
    for (const m of Object.values(out.messages)) {
      const seen = new Set();
      for (let at = m; at; at = out.messages[at.parent]) {
        if (seen.has(at.id)) throw new Error(`Chat ${n + 1} of the file has messages in a circle.`);
        seen.add(at.id);
      }
    }
    out.leaf = typeof c.leaf === "string" && Object.hasOwn(out.messages, c.leaf) ? c.leaf : Object.keys(out.messages).at(-1) ?? null;
    out.title = typeof c.title === "string" && c.title ? c.title.slice(0, 200) : titleOf(path(out)[0]?.content ?? "");
    out.named = Boolean(c.named);
    out.created = Number(c.created) || out.created;
    out.updated = Number(c.updated) || out.updated;
    return out;
  });
}
