// Markdown, colours and conversations without a browser: what goes in, what comes out.

import assert from "node:assert/strict";
import { test } from "node:test";
import { readFile, readdir } from "node:fs/promises";
import { HOSTILE } from "./answers.mjs";
import { PAGE } from "./fake-server.mjs";

globalThis.localStorage = { getItem: () => null, setItem() {}, removeItem() {} };
const { parse, safeLink } = await import(`${PAGE}/markdown.js`);
const { highlight } = await import(`${PAGE}/highlight.js`);
const { events, samples } = await import(`${PAGE}/api.js`);
const conversation = await import(`${PAGE}/conversation.js`);

const VOID = new Set(["br", "hr", "input"]);
function show(node) {
  if (typeof node === "string") return node;
  if (node.tag === "fence") return `<fence${node.language ? ` ${node.language}` : ""}${node.open ? " open" : ""}>${node.text}</fence>`;
  const attrs = Object.entries(node.attrs).filter(([k]) => !["rel", "target"].includes(k)).map(([k, v]) => v === "" ? ` ${k}` : ` ${k}=${v}`).join("");
  return VOID.has(node.tag) ? `<${node.tag}${attrs}>` : `<${node.tag}${attrs}>${node.kids.map(show).join("")}</${node.tag}>`;
}
const all = text => parse(text).map(b => show(b.node)).join("");
const check = (text, expected) => assert.equal(all(text), expected);

test("headings, paragraphs and rules", () => {
  check("# One\n## Two ##\ntext\nmore\n\n---\n#no", "<h2>One</h2><h3>Two</h3><p>text<br>more</p><hr><p>#no</p>");
  check("###### six\n####### seven", "<h6>six</h6><p>####### seven</p>");
  check("# C#\n# Hash #x", "<h2>C#</h2><h2>Hash #x</h2>");
});

test("emphasis follows the delimiter runs of CommonMark", () => {
  check("*a* **b** ***c*** _d_ __e__ ~~f~~", "<p><em>a</em> <strong>b</strong> <em><strong>c</strong></em> <em>d</em> <strong>e</strong> <del>f</del></p>");
  check("snake_case_name 2 * 3 * 4 **open", "<p>snake_case_name 2 * 3 * 4 **open</p>");
  check("**bold *and italic* here**", "<p><strong>bold <em>and italic</em> here</strong></p>");
  check("\\*no\\* a*b*c", "<p>*no* a<em>b</em>c</p>");
});

test("code spans and entities", () => {
  check("`a*b*` ``x ` y`` `<b>` &lt;b&gt; &amp;amp; &nope;", "<p><code>a*b*</code> <code>x ` y</code> <code><b></code> <b> &amp; &nope;</p>");
  check("a ` b", "<p>a ` b</p>");
});

test("lists: nested, loose, ordered, tasks", () => {
  check("- a\n- b\n  - c\n- d", "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>");
  check("3. a\n4. b", "<ol start=3><li>a</li><li>b</li></ol>");
  check("1. a\n  - two columns\n2. b", "<ol><li>a<ul><li>two columns</li></ul></li><li>b</li></ol>");
  check("- a\n\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>");
  check("- [ ] a\n- [x] b", "<ul><li class=task><input type=checkbox disabled>a</li><li class=task><input type=checkbox disabled checked>b</li></ul>");
  check("1. x\n   ```js\n   let a;\n   ```\n2. y", "<ol><li>x<fence js>let a;</fence></li><li>y</li></ol>");
  check("It was\n1986. What a year.", "<p>It was<br>1986. What a year.</p>");
});

test("tables, also while they come", () => {
  check("| a | b |\n|---|:-:|\n| 1 | `x` |\n| \\| |", "<table><thead><tr><th>a</th><th class=center>b</th></tr></thead><tbody><tr><td>1</td><td class=center><code>x</code></td></tr><tr><td>|</td><td class=center></td></tr></tbody></table>");
  check("| a | b |\n|--", "<p>| a | b |<br>|--</p>");
});

test("quotes", () => {
  check("> a\n> > b\n\nc", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>");
});

test("fences keep what is in them", () => {
  check("```py title\nx = 1\n\n<b>\n```\nafter", "<fence py>x = 1\n\n<b></fence><p>after</p>");
  check("~~~\n```\n~~~", "<fence>```</fence>");
  check("```\nopen", "<fence open>open</fence>");
  check("````\n```\nx", "<fence open>```\nx</fence>");
});

test("links have safe schemes only", () => {
  check("[x](https://a.b/c_(d) \"t\") <https://e.f>", "<p><a href=https://a.b/c_(d)>x</a> <a href=https://e.f>https://e.f</a></p>");
  check("(see https://a.b/c).", "<p>(see <a href=https://a.b/c>https://a.b/c</a>).</p>");
  check("![pic](https://a.b/p.png)", "<p><a href=https://a.b/p.png>pic</a></p>");
  for (const url of ["javascript:alert(1)", "JAVASCRIPT:alert(1)", " javascript:x", "data:text/html,x", "vbscript:x", "//a.b", "/v1/models", "file:///etc/passwd", "https:", "java\u0000script:x", "blob:x"]) {
    assert.equal(safeLink(url), null, url);
    assert.doesNotMatch(all(`[x](${url}) [y](<${url}>)`), /<a /, url);
  }
});

test("HTML stays text", () => {
  check("<img src=x onerror=alert(1)>", "<p><img src=x onerror=alert(1)></p>");
  const names = node => typeof node === "string" ? [] : node.tag === "fence" ? ["fence"] : [node.tag, ...node.kids.flatMap(names)];
  for (const [name, text] of Object.entries(HOSTILE)) {
    for (const tag of parse(text).flatMap(b => names(b.node))) assert.doesNotMatch(tag, /img|script|svg|iframe|style|details|^b$/, name);
  }
});

test("what grows changes the last block alone", () => {
  for (const text of Object.values(HOSTILE).filter(t => t.length < 2_000).concat("# a\n\n- b\n- c\n\n  d\n\n| x | y |\n|---|---|\n| 1 | 2 |\n\n> q\n\n```js\nlet a\n```\n**end** of `it`\n---\n")) {
    let before = [];
    for (let n = 1; n <= text.length; n++) {
      const now = parse(text.slice(0, n));
      before.slice(0, -1).forEach((b, i) => assert.deepEqual(now[i], b, JSON.stringify(text.slice(0, n))));
      if (before.length) assert.equal(now[before.length - 1]?.start, before.at(-1).start);
      before = now;
    }
  }
});

test("no text takes long or nests without end", () => {
  const depth = node => typeof node === "string" || !node.kids ? 1 : 1 + Math.max(0, ...node.kids.map(depth));
  const N = 20_000;
  for (const text of ["[", "[a](", "*a ", "*a*b", "_a_", "`a``b```", ">", "- ", "a**", "&amp", "- a\n", "|", "<", "https://a)", "~~a", "![", "1. "].map(t => t.repeat(N)).concat(
    "*".repeat(N) + "a" + "*".repeat(N), "*a ".repeat(N) + "b* ".repeat(N), "# a" + " ".repeat(N) + "x", "```" + " ".repeat(N) + "`", "|".repeat(N) + "\n" + "|-".repeat(N), "[".repeat(N) + "](x)".repeat(N), "https://a" + ")".repeat(N))) {
    const start = performance.now();
    const found = parse(text);
    assert.ok(performance.now() - start < 3_000, `${text.slice(0, 8)} took ${performance.now() - start} ms`);
    assert.ok(Math.max(0, ...found.map(b => depth(b.node))) < 80, text.slice(0, 8));
  }
});

test("colours lose nothing of the source", () => {
  const text = nodes => nodes.map(n => typeof n === "string" ? n : n.kids[0]).join("");
  const sources = { rust: "fn main() { println!(\"a\\\"b\"); } // end", python: "'''doc\n'''\nx = f'{a}' # c", json: "{\"a\": [1, -2.5e3, true]}", html: "<!-- a --><b class=\"x\">y</b>", diff: "+a\n-b\n@@\n c", sh: "echo $# \"open", unknown: "a < b" };
  for (const [language, source] of Object.entries(sources)) assert.equal(text(highlight(source, language)), source, language);
  assert.deepEqual(highlight("let x", "rust")[0], { tag: "span", attrs: { class: "t-keyword" }, kids: ["let"] });
  assert.deepEqual(highlight("y".repeat(40_000), "rust"), ["y".repeat(40_000)]);
});

test("server-sent events, cut anywhere", () => {
  const whole = "data: {\"a\":1}\r\n\r\n: comment\n\nevent: x\ndata: two\ndata: lines\n\ndata: [DONE]\n\ndata: half";
  for (let size = 1; size < 9; size++) {
    const out = [], push = events(d => out.push(d));
    for (let i = 0; i < whole.length; i += size) push(whole.slice(i, i + size));
    assert.deepEqual(out, ["{\"a\":1}", "two\nlines", "[DONE]"]);
  }
});

test("metrics are summed over labels, buckets left out", () => {
  const found = samples("# HELP x y\na_total{model=\"m\"} 2\na_total{model=\"n\"} 3\nb 1.5\nh_bucket{le=\"1\"} 9\n");
  assert.deepEqual([...found], [["a_total", 5], ["b", 1.5]]);
});

test("a conversation is a tree whose branches are kept", () => {
  const c = conversation.create();
  const q = conversation.add(c, null, { role: "user", content: "Hello there, tell me about frogs and their bicycles and bells" });
  const a = conversation.add(c, q.id, { role: "assistant", content: "One" });
  const b = conversation.add(c, q.id, { role: "assistant", content: "Two" });
  b.created++;
  assert.equal(c.title, "Hello there, tell me about frogs and their…");
  assert.deepEqual(conversation.path(c).map(m => m.content.slice(0, 5)), ["Hello", "Two"]);
  assert.deepEqual(conversation.siblings(c, a).map(m => m.content), ["One", "Two"]);
  conversation.choose(c, a);
  assert.equal(conversation.path(c).at(-1), a);
  assert.deepEqual(conversation.prompt(c, q.id, "Be brief.").map(m => m.role), ["system", "user"]);
  assert.ok(conversation.matches(c, "FROGS one") && !conversation.matches(c, "cats"));
  assert.match(conversation.toMarkdown(c), /^# Hello.*\n\n## You\n\nHello[^]*## Glimmer\n\nOne\n$/);
  const [back] = conversation.fromJson(conversation.toJson([c]));
  assert.notEqual(back.id, c.id);
  assert.deepEqual(conversation.path(back).map(m => m.content), conversation.path(c).map(m => m.content));
});

test("files that are no export are refused with a reason", () => {
  const file = messages => JSON.stringify({ format: "glimmer-chats", version: 1, conversations: [{ messages }] });
  assert.throws(() => conversation.fromJson("{"), /not JSON/);
  assert.throws(() => conversation.fromJson("[]"), /not an export/);
  assert.throws(() => conversation.fromJson(file({ a: { id: "a", role: "system", content: "x" } })), /Chat 1/);
  assert.throws(() => conversation.fromJson(file({ a: { id: "__proto__", role: "user", content: "x" } })), /Chat 1/);
  assert.throws(() => conversation.fromJson(file({ a: { id: "a", parent: "b", role: "user", content: "x" }, b: { id: "b", parent: "a", role: "user", content: "x" } })), /circle/);
  const [c] = conversation.fromJson(file({ a: { id: "a", parent: "constructor", role: "user", content: "x", evil: 1, reasoning: 5 } }));
  assert.deepEqual(Object.keys(c.messages.a).sort(), ["content", "created", "id", "parent", "role"]);
});

test("no file of the page has a way for text to become markup, nor an address outside", async () => {
  for (const name of await readdir(PAGE)) {
    const text = await readFile(`${PAGE}/${name}`, "utf8");
    assert.doesNotMatch(text, /innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc|setHTML|\beval\(|new Function|createContextualFragment/, name);
    if (name.endsWith(".html")) assert.doesNotMatch(text, /<script(?![^>]*src=)|<style|\sstyle=|\son\w+=/, name);
    assert.doesNotMatch(text.replaceAll("http://www.w3.org/2000/svg", ""), /(?:src|href|url|import|fetch)\s*[=(]?\s*["'(]https?:/, name);
  }
});
