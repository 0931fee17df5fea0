// Markdown as models write it. In: text, also half of one. Out: blocks `{ start, node }`, where a node is a string or
// `{ tag, attrs, kids }` and a fenced block `{ tag: "fence", language, text, open }`.
//
// Nothing here is HTML: tags in the text stay text. More text after `text` changes no block but the last one.
// It is CommonMark with tables, strikethrough and task lists, less what no chat needs: no reference links, no code by
// indentation, no headings by underlining, and a line break is a line break. Images become links: the page loads nothing.

const DEEPEST = 12;
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t](.*))?$/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:([ \t]+)(.*))?$/;
const DELIMITERS = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

// What is emphasised deeper than this stays text: elements must not nest without end.
const LONGEST_RUN = 6, MOST_OPEN = 24;

const element = (tag, kids, attrs = {}) => ({ tag, attrs, kids });
const blank = line => /^\s*$/.test(line);
const indent = line => line.length - line.trimStart().length;

export function parse(text) {
  const lines = text.split("\n").map(l => l.endsWith("\r") ? l.slice(0, -1) : l);
  const starts = [0];
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) starts.push(at + 1);
  return blocks(lines, 0).map(({ line, node }) => ({ start: starts[line], node }));
}

// Whether a line ends a paragraph before it.
function interrupts(line, next) {
  if (FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || isTable(line, next)) return true;
  const item = marker(line);
  return item !== null && !blank(item.text) && (!item.ordered || item.number === 1);
}

function marker(line) {
  const m = ITEM.exec(line);
  if (!m || RULE.test(line)) return null;
  const [, before, sign, gap = "", text = ""] = m;
  const ordered = sign.length > 1 || /\d/.test(sign);
  const width = gap.length > 4 || text === "" ? 1 : gap.length;
  return { at: before.length, kind: sign.slice(-1), ordered, number: ordered ? parseInt(sign, 10) : 0, text: gap.slice(width) + text, content: before.length + sign.length + width };
}

const isTable = (line, next) => next !== undefined && line.includes("|") && next.includes("|") && DELIMITERS.test(next)
  && cells(line).length === cells(next).length;

function blocks(lines, depth) {
  const out = [];
  let i = 0;
  while (i < lines.length) {
    const line = lines[i], first = i;
    let m;
    if (blank(line)) {
      i++;
      continue;
    }
    let node;
    if ((m = FENCE.exec(line))) {
      [node, i] = fence(lines, i, m);
    } else if ((m = HEADING.exec(line))) {
      node = element(`h${Math.min(6, m[1].length + 1)}`, inline(heading(m[2] || "")));
      i++;
    } else if (RULE.test(line)) {
      node = element("hr", []);
      i++;
    } else if (QUOTE.test(line) && depth < DEEPEST) {
      const inner = [];
      for (; i < lines.length && !blank(lines[i]) && (QUOTE.test(lines[i]) || !interrupts(lines[i], lines[i + 1])); i++) inner.push(lines[i].replace(QUOTE, ""));
      node = element("blockquote", blocks(inner, depth + 1).map(b => b.node));
    } else if (isTable(line, lines[i + 1])) {
      [node, i] = table(lines, i);
    } else if (marker(line) && depth < DEEPEST) {
      [node, i] = list(lines, i, depth);
    } else {
      const text = [line.trimStart()];
      for (i++; i < lines.length && !blank(lines[i]) && !interrupts(lines[i], lines[i + 1]); i++) text.push(lines[i].trimStart());
      node = element("p", inline(text.join("\n").trimEnd()));
    }
    out.push({ line: first, node });
  }
  return out;
}

// A heading may be closed by a run of `#`.
function heading(text) {
  text = text.trim();
  let end = text.length;
  while (text[end - 1] === "#") end--;
  return end === 0 || /\s/.test(text[end - 1]) ? text.slice(0, end).trimEnd() : text;
}

function fence(lines, i, [, sign, info]) {
  const closing = new RegExp(`^ {0,3}${sign[0]}{${sign.length},}[ \\t]*$`);
  const margin = indent(lines[i]), text = [];
  let open = true;
  for (i++; i < lines.length && open; i++) {
    if (closing.test(lines[i])) open = false;
    else text.push(lines[i].slice(Math.min(margin, indent(lines[i]))));
  }
  const language = info.trim().split(/[\s{,]/)[0].slice(0, 24);
  return [{ tag: "fence", language, text: text.join("\n"), open }, i];
}

function list(lines, i, depth) {
  const head = marker(lines[i]), items = [];
  let loose = false;
  for (let item = head; item;) {
    const inner = [item.text];
    let gap = false;
    for (i++; i < lines.length; i++) {
      const line = lines[i];
      if (blank(line)) {
        inner.push("");
        gap = true;
        continue;
      }
      // Two columns are enough to belong to an item: models indent by two below `1.` too.
      if (indent(line) >= Math.min(item.content, item.at + 2)) inner.push(line.slice(Math.min(item.content, indent(line))));
      else if (!gap && !marker(line) && !interrupts(line, lines[i + 1])) inner.push(line.trimStart());
      else break;
      gap = false;
    }
    let ends = inner.length;
    while (ends > 1 && inner[ends - 1] === "") ends--;
    const kids = blocks(inner.slice(0, ends), depth + 1);
    loose ||= kids.some((kid, n) => n > 0 && kid.node.tag === "p" && inner[kid.line - 1] === "");
    items.push(kids.map(b => b.node));
    const next = i < lines.length ? marker(lines[i]) : null;
    const same = next && next.kind === head.kind && next.ordered === head.ordered;
    loose ||= Boolean(same && gap);
    item = same ? next : null;
  }
  const kids = items.map(nodes => {
    const flat = loose ? nodes : nodes.flatMap(n => n.tag === "p" ? n.kids : [n]);
    return task(element("li", flat));
  });
  return [element(head.ordered ? "ol" : "ul", kids, head.ordered && head.number !== 1 ? { start: String(head.number) } : {}), i];
}

function task(li) {
  const home = li.kids[0]?.tag === "p" ? li.kids[0] : li;
  const m = typeof home.kids[0] === "string" ? /^\[([ xX])\] /.exec(home.kids[0]) : null;
  if (!m) return li;
  const box = element("input", [], { type: "checkbox", disabled: "", ...(m[1] === " " ? {} : { checked: "" }) });
  home.kids = [box, home.kids[0].slice(4), ...home.kids.slice(1)];
  li.attrs = { class: "task" };
  return li;
}

function cells(line) {
  const text = line.trim().replace(/^\|/, ""), out = [""];
  for (let i = 0; i < text.length; i++) {
    if (text[i] === "\\" && text[i + 1] === "|") out[out.length - 1] += text[++i];
    else if (text[i] === "|") out.push("");
    else out[out.length - 1] += text[i];
  }
  if (out.length > 1 && blank(out[out.length - 1])) out.pop();
  return out.map(c => c.trim());
}

function table(lines, i) {
  const align = cells(lines[i + 1]).map(c => c.endsWith(":") ? (c.startsWith(":") ? "center" : "right") : "");
  const row = (tag, line) => {
    const texts = cells(line);
    return element("tr", align.map((a, n) => element(tag, inline(texts[n] || ""), a ? { class: a } : {})));
  };
  const head = element("thead", [row("th", lines[i])]), rows = [];
  for (i += 2; i < lines.length && !blank(lines[i]) && !(interrupts(lines[i], lines[i + 1]) && !lines[i].includes("|")); i++) rows.push(row("td", lines[i]));
  return [element("table", rows.length ? [head, element("tbody", rows)] : [head]), i];
}

const PUNCTUATION = /[!-/:-@[-`{-~]/;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: "\"", apos: "'", "#39": "'", nbsp: "\u00a0" };
const BARE = /https?:\/\/[^\s<>"`]+/y;

// Only these schemes, spelled out; anything else would run code or ask the server that this page comes from.
export function safeLink(url) {
  return /^(?:https?:\/\/|mailto:)[^\s\u0000-\u001f]+$/i.test(url) ? url : null;
}

const link = (url, kids) => element("a", kids, { href: url, rel: "noopener noreferrer nofollow", target: "_blank" });

// Where each `[` closes, in one pass: brackets in code and after a backslash do not count.
function brackets(text) {
  const closes = new Map(), open = [];
  for (let i = 0; i < text.length; i++) {
    if (text[i] === "\\") i++;
    else if (text[i] === "[") open.push(i);
    else if (text[i] === "]" && open.length) closes.set(open.pop(), i);
  }
  return closes;
}

// Where the next run of that many backticks is. Asked from left to right, so each run is passed once.
function backticks(text) {
  const runs = new Map();
  for (const m of text.matchAll(/`+/g)) {
    if (!runs.has(m[0].length)) runs.set(m[0].length, { at: [], next: 0 });
    runs.get(m[0].length).at.push(m.index);
  }
  return (length, after) => {
    const run = runs.get(length);
    while (run.at[run.next] < after) run.next++;
    return run.at[run.next];
  };
}

// The destination of `[text](destination "title")` that starts at `i`, and where it ends.
function destination(text, i) {
  const m = /\(\s*(?:<([^<>\n]*)>|([^\s()<]*(?:\([^\s()]*\)[^\s()]*)*))(?:\s+(?:"[^"\n]*"|'[^'\n]*'|\([^()\n]*\)))?\s*\)/y;
  m.lastIndex = i;
  const found = m.exec(text);
  return found && { url: found[1] ?? found[2], end: m.lastIndex };
}

export function inline(text, depth = 0) {
  const out = [], closes = brackets(text), closing = backticks(text);
  let plain = "", i = 0;
  const flush = () => {
    if (plain) out.push(plain);
    plain = "";
  };
  const push = (node, end) => {
    flush();
    out.push(node);
    i = end;
  };
  while (i < text.length) {
    const c = text[i];
    if (c === "\\" && text[i + 1] === "\n") push(element("br", []), i + 2);
    else if (c === "\\" && i + 1 < text.length && PUNCTUATION.test(text[i + 1])) {
      plain += text[i + 1];
      i += 2;
    } else if (c === "\n") {
      plain = plain.trimEnd();
      push(element("br", []), i + 1);
    } else if (c === "`") {
      const run = /`+/y;
      run.lastIndex = i;
      const { length } = run.exec(text)[0], end = closing(length, i + length);
      if (end === undefined) {
        plain += text.slice(i, i + length);
        i += length;
      } else {
        const code = text.slice(i + length, end).replace(/\n/g, " ");
        const padded = code.startsWith(" ") && code.endsWith(" ") && code.trim() !== "";
        push(element("code", [padded ? code.slice(1, -1) : code]), end + length);
      }
    } else if (c === "[" || (c === "!" && text[i + 1] === "[")) {
      const at = c === "!" ? i + 1 : i, close = closes.get(at);
      const target = close === undefined || depth > 3 ? null : destination(text, close + 1);
      if (!target) {
        plain += c;
        i++;
        continue;
      }
      const label = text.slice(at + 1, close), url = safeLink(target.url);
      const kids = inline(label, depth + 1);
      if (url) push(link(url, kids.length ? kids : [url]), target.end);
      else {
        flush();
        out.push(...kids);
        i = target.end;
      }
    } else if (c === "<") {
      const auto = /<(https?:\/\/[^\s<>]+|mailto:[^\s<>]+)>/iy, br = /<br\s*\/?>/iy;
      auto.lastIndex = br.lastIndex = i;
      const found = auto.exec(text);
      if (found && depth === 0) push(link(found[1], [found[1]]), auto.lastIndex);
      else if (br.test(text)) push(element("br", []), br.lastIndex);
      else {
        plain += c;
        i++;
      }
    } else if (c === "&") {
      const m = /&(#39|[a-z]{2,4});/y;
      m.lastIndex = i;
      const found = m.exec(text), known = found && ENTITIES[found[1]];
      plain += known || c;
      i = known ? m.lastIndex : i + 1;
    } else if (c === "h" && depth === 0 && (i === 0 || !/\w/.test(text[i - 1])) && (BARE.lastIndex = i, BARE.test(text))) {
      const url = trimmed(text.slice(i, BARE.lastIndex));
      push(link(url, [url]), i + url.length);
    } else if (c === "*" || c === "_" || c === "~") {
      let end = i;
      while (text[end] === c) end++;
      push(delimiter(text, i, end), end);
    } else {
      plain += c;
      i++;
    }
  }
  flush();
  return emphasis(out);
}

// A bare address ends before the punctuation of the sentence around it.
function trimmed(url) {
  let excess = 0, end = url.length;
  for (const c of url) excess += c === ")" ? 1 : c === "(" ? -1 : 0;
  for (; end > 0; end--) {
    if (url[end - 1] === ")" && excess > 0) excess--;
    else if (!/[.,:;!?'"*_~\]]/.test(url[end - 1])) break;
  }
  return url.slice(0, end);
}

function delimiter(text, start, end) {
  const sign = text[start], before = text[start - 1] ?? " ", after = text[end] ?? " ";
  const space = ch => /\s/.test(ch), mark = ch => /[\p{P}\p{S}]/u.test(ch);
  const left = !space(after) && (!mark(after) || space(before) || mark(before));
  const right = !space(before) && (!mark(before) || space(after) || mark(after));
  return {
    sign, count: end - start, length: end - start,
    opens: left && (sign !== "_" || !right || mark(before)),
    closes: right && (sign !== "_" || !left || mark(after)),
  };
}

// CommonMark's delimiter runs: what closes takes the nearest run that opens; what is left over is text.
function emphasis(nodes) {
  const stack = [];
  const out = [];
  // How deep in the stack a search for an opener of a kind is known to be in vain.
  const floor = new Map();
  for (const node of nodes) {
    if (!node.sign) {
      out.push(node);
      continue;
    }
    if (node.closes) {
      while (node.count > 0) {
        const kind = `${node.sign}${node.opens}${node.length % 3}`;
        let at = stack.length - 1;
        for (const bottom = floor.get(kind) ?? 0; at >= bottom; at--) {
          const o = stack[at];
          const odd = (o.node.closes || node.opens) && (o.node.length + node.length) % 3 === 0 && (o.node.length % 3 !== 0 || node.length % 3 !== 0);
          if (o.node.sign === node.sign && (node.sign === "~" ? o.node.count === node.count && node.count <= 2 : !odd)) break;
        }
        if (at < (floor.get(kind) ?? 0)) {
          floor.set(kind, stack.length);
          break;
        }
        const opener = stack[at], used = node.sign === "~" ? node.count : Math.min(2, opener.node.count, node.count);
        const inner = out.splice(opener.at + 1).map(settle);
        out.push(element(node.sign === "~" ? "del" : used === 2 ? "strong" : "em", join(inner)));
        stack.length = at + 1;
        for (const [k, bottom] of floor) if (bottom > stack.length) floor.set(k, stack.length);
        opener.node.count -= used;
        node.count -= used;
        if (opener.node.count === 0) {
          out.splice(opener.at, 1);
          stack.pop();
        }
      }
    }
    if (node.count > 0) {
      if (node.opens && node.length <= LONGEST_RUN && stack.length < MOST_OPEN) stack.push({ node, at: out.length });
      out.push(node);
    }
  }
  return join(out.map(settle));
}

const settle = node => node.sign ? node.sign.repeat(node.count) : node;

function join(nodes) {
  const out = [];
  for (const n of nodes) {
    if (typeof n === "string" && typeof out[out.length - 1] === "string") out[out.length - 1] += n;
    else if (n !== "") out.push(n);
  }
  return out;
}
