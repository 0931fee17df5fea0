// Colours for code. In: source text and the name of its language. Out: strings and `span` nodes of a class each.
//
// One scanner serves all languages: a family says what a comment, a string and a word of the language is. The texts of
// the result, put together, are the source exactly.

const words = text => new Set(text.split(" "));
const C = { comments: [["//", "\n"], ["/*", "*/"]], strings: "\"'" };
const HASH = { comments: [["#", "\n"]], strings: "\"'" };

const FAMILIES = {
  rust: { ...C, strings: "\"", keywords: words("as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while") },
  c: { ...C, keywords: words("auto bool break case catch char class const constexpr continue default delete do double else enum explicit extern false final float for goto if import inline int interface long namespace new nullptr null operator override package private protected public return short signed sizeof static struct super switch template this throw throws true try typedef typename union unsigned using var virtual void volatile while func fun val when is in out ref string foreach async await internal readonly go defer chan map range select fallthrough type") },
  js: { ...C, strings: "\"'`", keywords: words("abstract any as async await boolean break case catch class const constructor continue debugger declare default delete do else enum export extends false finally for from function get if implements import in instanceof interface keyof let namespace never new null number of private protected public readonly return satisfies set static string super switch this throw true try type typeof undefined unknown var void while yield") },
  python: { ...HASH, triple: true, keywords: words("and as assert async await break case class continue def del elif else except False finally for from global if import in is lambda match None nonlocal not or pass raise return self True try while with yield") },
  shell: { ...HASH, keywords: words("case cd do done echo elif else esac exit export fi for function if in local read return set shift source sudo then unset until while") },
  ruby: { ...HASH, keywords: words("alias and begin break case class def do else elsif end ensure false for if in module next nil not or redo rescue retry return self super then true undef unless until when while yield require") },
  config: { ...HASH, keywords: words("true false null yes no on off") },
  json: { comments: [["//", "\n"]], strings: "\"", keywords: words("true false null") },
  sql: { comments: [["--", "\n"], ["/*", "*/"]], strings: "'\"", blind: true, keywords: words("add all alter and as asc begin between by case check column commit constraint create cross database default delete desc distinct drop else end exists foreign from full group having if in index inner insert into is join key left like limit not null offset on or order outer primary references returning right rollback row select set table then union unique update using values view when where with") },
  lua: { comments: [["--[[", "]]"], ["--", "\n"]], strings: "\"'", keywords: words("and break do else elseif end false for function goto if in local nil not or repeat return then true until while") },
  haskell: { comments: [["--", "\n"], ["{-", "-}"]], strings: "\"", keywords: words("as case class data default deriving do else forall if import in infix infixl infixr instance let module newtype of qualified then type where") },
  css: { comments: [["/*", "*/"]], strings: "\"'", keywords: words("important media supports keyframes import from to var calc") },
  markup: { comments: [["<!--", "-->"]], strings: "\"'", tags: true, keywords: new Set() },
};
const NAMES = {
  rust: "rust rs", c: "c cpp c++ cc h hpp java kotlin kt cs csharp c# go golang swift scala dart php zig cuda",
  js: "js javascript jsx ts typescript tsx mjs", python: "python py python3", shell: "sh bash shell zsh console fish",
  ruby: "ruby rb", config: "yaml yml toml ini conf dockerfile makefile make r perl nix", json: "json jsonc json5",
  sql: "sql sqlite postgresql mysql", lua: "lua", haskell: "haskell hs elm", css: "css scss less", markup: "html xml svg vue",
};
const FAMILY = new Map(Object.entries(NAMES).flatMap(([family, names]) => names.split(" ").map(n => [n, FAMILIES[family]])));

// Above this a block stays plain: colouring it again with every token would show.
const LONGEST = 30_000;

const span = (kind, text) => ({ tag: "span", attrs: { class: `t-${kind}` }, kids: [text] });

export function highlight(text, language) {
  const name = language.toLowerCase();
  if (text.length > LONGEST) return [text];
  if (name === "diff" || name === "patch") return diff(text);
  const family = FAMILY.get(name);
  return family ? scan(text, family) : [text];
}

function diff(text) {
  return text.split(/(?<=\n)/).map(line => line.startsWith("+") ? span("added", line) : line.startsWith("-") ? span("removed", line) : line.startsWith("@@") ? span("comment", line) : line);
}

function scan(text, family) {
  const out = [];
  let plain = "", i = 0;
  const push = (kind, end) => {
    if (plain) out.push(plain);
    plain = "";
    out.push(span(kind, text.slice(i, end)));
    i = end;
  };
  const word = /[A-Za-z_$][\w$]*/y, value = /(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)\w*/y;
  const name = /<\/?[A-Za-z][\w:-]*|\/?>/y;
  while (i < text.length) {
    const c = text[i];
    const comment = family.comments.find(([from]) => text.startsWith(from, i));
    if (comment && !(comment[0] === "#" && i > 0 && !/\s/.test(text[i - 1]))) {
      const end = text.indexOf(comment[1], i + comment[0].length);
      push("comment", end < 0 ? text.length : comment[1] === "\n" ? end : end + comment[1].length);
    } else if (family.strings.includes(c)) {
      push("string", string(text, i, family));
    } else if (family.tags && c === "<" && (name.lastIndex = i, name.test(text))) {
      push("keyword", name.lastIndex);
    } else if (/\d/.test(c)) {
      value.lastIndex = i;
      value.test(text);
      push("number", value.lastIndex);
    } else if ((word.lastIndex = i, word.test(text))) {
      const end = word.lastIndex, w = text.slice(i, end);
      if (family.keywords.has(family.blind ? w.toLowerCase() : w)) push("keyword", end);
      else if (text[end] === "(" || (text[end] === "!" && text[end + 1] === "(")) push("call", end);
      else if (/^[A-Z][a-z]/.test(w) && !family.tags) push("type", end);
      else {
        plain += w;
        i = end;
      }
    } else {
      plain += c;
      i++;
    }
  }
  if (plain) out.push(plain);
  return out;
}

// Where the string that starts at `i` ends: at its quote, or at the end of the line if it has none.
function string(text, i, family) {
  const quote = text[i];
  const triple = quote.repeat(3);
  if (family.triple && text.startsWith(triple, i)) {
    const end = text.indexOf(triple, i + 3);
    return end < 0 ? text.length : end + 3;
  }
  for (let at = i + 1; at < text.length; at++) {
    if (text[at] === "\\") at++;
    else if (text[at] === quote) return at + 1;
    else if (text[at] === "\n" && quote !== "`") return at;
  }
  return text.length;
}
