// The Performance tab. In: /metrics every second while it is open, and one profile. Out: what the engine does now, and where
// the time of a token goes.
//
// Nothing is asked while the tab is closed. A profile needs the model for itself: while it is busy the page waits and says so.

import * as api from "./api.js";
import { $, bytes, digits, h, icon, micros, number, percent } from "./dom.js";
import { budget, history, key, roofline, tips, color, about } from "./plots.js";

const LENGTH = 60;
const SERIES = {
  generated: "generated_tokens_total", prompt: "prompt_tokens_total", reused: "reused_tokens_total",
  running: "requests_running", waiting: "requests_waiting", pages: "kv_pages_total", used: "kv_pages_used",
};

let timer = 0, before = null, points = [], report = null, abort = null;

export function open() {
  if (timer) return;
  timer = setInterval(sample, 1000);
  sample();
  if (!report && !abort) measure();
}

export function close() {
  clearInterval(timer);
  timer = 0;
  before = null;
  points = [];
}

export function start() {
  $("measure").addEventListener("click", measure);
}

const tile = (label, value, more, meter) => h("div", { class: "tile" }, h("span", { class: "label" }, label), h("b", {}, value),
  meter === undefined ? null : h("div", { class: "meter" }, h("i", { css: { width: `${Math.min(100, 100 * meter)}%` } })), h("span", { class: "more" }, more));

async function sample() {
  let now;
  try {
    const found = await api.metrics();
    now = { at: performance.now() };
    for (const [what, name] of Object.entries(SERIES)) now[what] = found.get(`glimmer_${name}`) ?? 0;
    // The counter of prompts has those in it that the cache held.
    now.read = now.prompt - now.reused;
  } catch (e) {
    before = null;
    $("live-note").textContent = e.kind === "key" ? "The server asks for an API key: see the settings." : e.message;
    return;
  }
  if (!timer) return;
  $("live-note").textContent = "";
  const rate = what => before ? Math.max(0, (now[what] - before[what]) / (now.at - before.at) * 1000) : 0;
  const point = { generated: rate("generated"), read: rate("read") };
  if (before) points.push(point);
  points = points.slice(-LENGTH);
  before = now;
  $("live-tiles").replaceChildren(
    tile("generating", `${number(point.generated)} tok/s`, `${digits(now.generated, 0)} since the start`),
    tile("reading prompts", `${number(point.read)} tok/s`, now.reused ? `${percent(now.reused / now.prompt)} came from the cache` : `${digits(now.prompt, 0)} since the start`),
    tile("answers under way", digits(now.running, 0), `${digits(now.waiting, 0)} waiting`),
    now.pages ? tile("cache memory", percent(now.used / now.pages), `${digits(now.used, 0)} of ${digits(now.pages, 0)} pages`) : "");
  $("live-plot").replaceChildren(...history(points, LENGTH));
}

const wait = (ms, signal) => new Promise(resolve => {
  const t = setTimeout(resolve, ms);
  signal.addEventListener("abort", () => (clearTimeout(t), resolve()), { once: true });
});

async function measure() {
  abort?.abort();
  const { signal } = abort = new AbortController();
  const note = $("profile-note"), button = $("measure");
  button.disabled = true;
  try {
    while (!signal.aborted) {
      note.replaceChildren(h("span", { class: "spinner", "aria-hidden": "true" }), "Measuring a step…");
      try {
        report = await api.profile(signal);
        note.textContent = "";
        draw(report);
        break;
      } catch (e) {
        if (e.name === "AbortError") break;
        if (e.kind !== "busy" && e.kind !== "loading") {
          note.replaceChildren(icon("warning"), e.status === 404 ? "This server has no profiler." : e.message);
          break;
        }
        note.replaceChildren(h("span", { class: "spinner", "aria-hidden": "true" }), "The model is busy with an answer. It is measured as soon as it rests.");
        await wait((e.retry ?? 2) * 1000, signal);
      }
    }
  } finally {
    button.disabled = false;
    abort = null;
  }
}

let sorted = "share", down = true, wanted = "";
const opened = new Set();

function draw(R) {
  const reached = R.reached_tokens_s / R.theoretical_tokens_s;
  const card = (title, note, ...content) => h("section", { class: "card" }, h("h3", {}, title), h("p", { class: "note" }, note), ...content);
  const head = h("p", { class: "soft" }, `${R.model} · ${R.device} · ${R.tokens === 1 ? "one token" : `${R.tokens} tokens`} at depth ${R.depth}`);
  const filter = h("input", { type: "search", class: "field", placeholder: "Filter: experts, Q4_0, attend…", "aria-label": "Filter kernels" });
  filter.value = wanted;
  filter.addEventListener("input", () => {
    wanted = filter.value;
    table(R);
  });
  const show = id => {
    wanted = filter.value = "";
    opened.add(id);
    table(R);
    $(`kernel-${id}`).scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth", block: "center" });
  };
  $("profile").replaceChildren(head,
    h("div", { class: "tiles" },
      tile("reached", `${number(R.reached_tokens_s)} tok/s`, `${percent(reached)} of the limit`, reached),
      tile("limit by memory", `${number(R.theoretical_tokens_s)} tok/s`, `${bytes(R.bytes)} a step`),
      tile("read bandwidth", `${number(R.bandwidth_gb_s)} GB/s`, `${number(R.bandwidth_range[0])} to ${number(R.bandwidth_range[1])}`),
      tile("a step", micros(R.step_us), `${micros(R.step_range_us[0])} to ${micros(R.step_range_us[1])}`),
      tile("launches", digits(R.launches, 0), R.gaps_us ? `${micros(R.launches_us)}, gaps ${micros(R.gaps_us)}` : `${micros(R.launches_us)} one by one`),
      tile("synchronisations", digits(R.synchronisations, 0), `${R.kernels.length} kernels`)),
    h("div", { class: "two" },
      card("Budget", "Time of all launches by component, each divided into its kernels.", ...budget(R, show)),
      card("Roofline", "Left of the bend memory decides; above the slope what is read comes from caches.", roofline(R, show))),
    anatomy(R, show),
    h("section", { class: "card" }, h("div", { class: "card-top" }, h("div", {}, h("h3", {}, "Kernels"), h("p", { class: "note" }, "Choose a heading to sort, a row for its schedule, sources and IR.")), filter),
      h("div", { class: "table-scroll", tabindex: "0" }, h("table", { class: "kernels" }, h("thead", { id: "kernel-heads" }), h("tbody", { id: "kernel-rows" })))));
  table(R);
}

function anatomy(R, show) {
  if (!R.anatomy.length) return null;
  const byId = new Map(R.kernels.map(k => [k.id, k])), rows = h("div", {});
  const draw = n => {
    const longest = Math.max(...R.anatomy[n].launches.map(e => e.us), 1e-9);
    [...tabs.children].forEach((b, i) => b.setAttribute("aria-pressed", String(i === n)));
    rows.replaceChildren(...R.anatomy[n].launches.filter(e => byId.has(e.kernel)).map(e => {
      const k = byId.get(e.kernel);
      return tips(h("button", { type: "button", class: "launch", onclick: () => show(k.id) },
        h("span", { class: "what" }, key(k.component), k.what, " ", h("span", { class: "soft" }, k.shape)), h("span", { class: "num" }, micros(e.us)),
        h("span", {}, h("span", { class: "bar", css: { width: `${100 * e.us / longest}%`, background: color(k.component) } }))), () => about(k, e.us));
    }));
  };
  const tabs = h("div", { class: "pills" }, ...R.anatomy.map((b, n) => h("button", { type: "button", class: "pill", onclick: () => draw(n) },
    `layer ${b.layer}${b.layers > 1 ? ` and ${b.layers - 1} like it` : ""} · ${micros(b.us)}`)));
  draw(R.anatomy.length - 1);
  return h("section", { class: "card" }, h("h3", {}, "Anatomy of a block"), h("p", { class: "note" }, "The launches of one layer of each kind, in order."), tabs, rows);
}

const COLUMNS = [
  ["component", "component", k => [key(k.component), k.component]],
  ["what", "what", k => [k.what, h("div", { class: "soft" }, k.shape)]],
  ["calls", "calls", k => digits(k.calls, 0), true],
  ["us", "a call", k => micros(k.us), true],
  ["bytes", "touched", k => bytes(k.bytes), true],
  ["gb_s", "GB/s", k => number(k.gb_s), true],
  ["gop_s", "Gop/s", k => number(k.gop_s), true],
  ["share", "share", k => percent(k.share), true],
];

function table(R) {
  $("kernel-heads").replaceChildren(h("tr", {}, ...COLUMNS.map(([name, label, , num]) => h("th", { scope: "col", class: num ? "num" : "", "aria-sort": name === sorted ? (down ? "descending" : "ascending") : "none" },
    h("button", { type: "button", onclick: () => { down = name === sorted ? !down : Boolean(num); sorted = name; table(R); } }, label)))));
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  const text = k => [k.name, k.component, k.what, k.shape, k.schedule, ...k.source].join(" ").toLowerCase();
  const rows = R.kernels.filter(k => words.every(w => text(k).includes(w))).sort((a, b) => (a[sorted] > b[sorted] ? 1 : a[sorted] < b[sorted] ? -1 : 0) * (down ? -1 : 1));
  $("kernel-rows").replaceChildren(...rows.flatMap(k => {
    const toggle = () => { opened.has(k.id) ? opened.delete(k.id) : opened.add(k.id); table(R); };
    const row = h("tr", { id: `kernel-${k.id}`, class: "kernel", onclick: toggle }, ...COLUMNS.map(([name, , cell, num]) => h("td", { class: num ? "num" : "" },
      name === "what" ? h("button", { type: "button", class: "plain", "aria-expanded": String(opened.has(k.id)) }, ...[cell(k)].flat()) : cell(k))));
    if (!opened.has(k.id)) return [row];
    const pair = (name, value) => [h("dt", {}, name), h("dd", {}, value)];
    return [row, h("tr", { class: "detail" }, h("td", { colspan: COLUMNS.length }, h("dl", {},
      ...pair("name", h("code", {}, k.name)), ...pair("schedule", h("code", {}, k.schedule || "none")), ...pair("comes from", h("code", {}, k.source.join(", "))),
      ...pair("belongs to", k.components.map(([c, share]) => `${c} ${percent(share)}`).join(", ")),
      ...pair("code", `${digits(k.instructions, 0)} linear instructions, ${digits(k.operations, 0)} operations, loads of ${bytes(k.loaded)}`)),
      k.text ? h("pre", { tabindex: "0" }, k.text) : null))];
  }));
}
