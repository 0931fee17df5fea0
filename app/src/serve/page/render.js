// Markdown on the screen. In: an answer that grows. Out: elements below one root, of the kinds in `TAGS` alone.
//
// Every element is made by name and every text is a text node, so no answer can bring markup of its own. With each call
// only the last block is parsed again, and of it only what differs touches the DOM: a selection stays where it is.

import { highlight } from "./highlight.js";
import { parse } from "./markdown.js";
import { h, icon } from "./dom.js";

const TAGS = new Set(["p", "h2", "h3", "h4", "h5", "h6", "hr", "blockquote", "ul", "ol", "li", "input", "table", "thead", "tbody", "tr", "th", "td", "strong", "em", "del", "code", "a", "br", "span"]);
const ATTRIBUTES = new Set(["class", "href", "rel", "target", "start", "type", "disabled", "checked", "dir", "title"]);

// Characters that turn the direction of what follows: in a sentence overrides, in code all of them, are shown by name.
const OVERRIDES = /[\u202d\u202e]/;
const DIRECTIONS = /[\u200e\u200f\u202a-\u202e\u2066-\u2069]/;

export function visible(text, pattern = OVERRIDES) {
  if (!pattern.test(text)) return [text];
  return text.split(new RegExp(`(${pattern.source})`)).filter(Boolean).map(part => pattern.test(part)
    ? { tag: "span", attrs: { class: "unseen", title: "changes the direction of text" }, kids: [`U+${part.codePointAt(0).toString(16).toUpperCase()}`] }
    : part);
}

function showDirections(nodes, pattern) {
  return nodes.flatMap(n => {
    if (typeof n === "string") return visible(n, pattern);
    if (!n.kids) return [n];
    const inner = n.tag === "code" || n.tag === "a" ? DIRECTIONS : pattern;
    return [{ ...n, kids: showDirections(n.kids, inner) }];
  });
}

const codes = new WeakMap();

// The source of the fenced block around a button.
export const codeOf = button => codes.get(button.closest(".code"));

function make(node) {
  if (typeof node === "string") return document.createTextNode(node);
  if (node.tag === "fence") return makeFence(node);
  if (!TAGS.has(node.tag)) throw new Error(`no element ${node.tag}`);
  const element = document.createElement(node.tag);
  for (const [name, value] of Object.entries(node.attrs)) if (ATTRIBUTES.has(name)) element.setAttribute(name, value);
  if (DIRECTED.has(node.tag)) element.dir = "auto";
  for (const kid of node.kids) element.append(make(kid));
  return wrapped(node, element);
}

const DIRECTED = new Set(["p", "h2", "h3", "h4", "h5", "h6", "li", "td", "th"]);

// Wide tables scroll by themselves.
const wrapped = (node, element) => node.tag === "table" ? h("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" }, element) : element;
const inside = (node, element) => node.tag === "table" ? element.firstChild : element;

const codeKids = node => showDirections(highlight(node.text, node.language), DIRECTIONS);

function makeFence(node) {
  const kids = codeKids(node);
  const box = h("div", { class: "code" },
    h("div", { class: "code-head" }, h("span", { class: "language" }, node.language || "text"),
      h("button", { type: "button", class: "copy-code", "aria-label": "Copy code" }, icon("copy"), h("span", {}, "Copy"))),
    h("pre", { tabindex: "0" }, h("code", { dir: "ltr" }, ...kids.map(make))));
  codes.set(box, node.text);
  node.shown = kids;
  return box;
}

function patchFence(before, after, box) {
  box.querySelector(".language").textContent = after.language || "text";
  after.shown = codeKids(after);
  patchKids(box.querySelector("code"), before.shown, after.shown);
  codes.set(box, after.text);
}

function patch(before, after, dom) {
  if (typeof before === "string" && typeof after === "string") {
    if (before !== after) dom.data = after;
    return dom;
  }
  if (typeof before === "string" || typeof after === "string" || before.tag !== after.tag) {
    const made = make(after);
    dom.replaceWith(made);
    return made;
  }
  if (after.tag === "fence") {
    patchFence(before, after, dom);
    return dom;
  }
  const element = inside(after, dom);
  for (const name of ATTRIBUTES) {
    const value = after.attrs[name];
    if (value === before.attrs[name]) continue;
    if (value === undefined) element.removeAttribute(name); else element.setAttribute(name, value);
  }
  patchKids(element, before.kids, after.kids);
  return dom;
}

function patchKids(parent, before, after) {
  const nodes = [...parent.childNodes];
  after.forEach((kid, n) => {
    if (n < before.length) patch(before[n], kid, nodes[n]); else parent.append(make(kid));
  });
  nodes.slice(after.length).forEach(n => n.remove());
}

export class Answer {
  constructor(root) {
    this.root = root;
    this.text = "";
    this.blocks = [];
  }

  update(text) {
    if (text === this.text) return;
    const grows = text.startsWith(this.text), last = this.blocks[this.blocks.length - 1];
    const from = grows && last ? last.start : 0, kept = grows && last ? this.blocks.length - 1 : 0;
    const fresh = parse(text.slice(from)).map(b => ({ start: b.start + from, node: b.node.tag === "fence" ? b.node : showDirections([b.node], OVERRIDES)[0] }));
    const old = this.blocks.splice(kept);
    fresh.forEach((block, n) => {
      if (n < old.length) block.dom = patch(old[n].node, block.node, old[n].dom);
      else this.root.append(block.dom = make(block.node));
    });
    old.slice(fresh.length).forEach(b => b.dom.remove());
    this.blocks.push(...fresh);
    this.text = text;
  }
}

// What a person typed: text as it is.
export const plainText = text => visible(text).map(make);
