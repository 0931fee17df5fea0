// The pictures of the Performance tab. In: a profile as `glimmer profile --json` gives it, or speeds over time. Out: elements.
//
// Colours are the components', the same in every picture; a picture says what it shows to a screen reader too.

import { $, bytes, h, micros, number, percent, s } from "./dom.js";

export const color = component => `var(--c-${component.replace(/ /g, "-")}, var(--c-small-ops))`;
export const key = component => h("span", { class: "key", css: { background: color(component) } });

// Lines that show beside the pointer while it is over a node.
export function tips(node, lines) {
  const tip = $("tip");
  node.addEventListener("pointermove", e => {
    const [first, ...rest] = lines();
    tip.replaceChildren(h("b", {}, first), ...rest.map(t => h("div", {}, t)));
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(e.clientX + 14, innerWidth - width - 8))}px`;
    tip.style.top = `${Math.max(8, Math.min(e.clientY + 14, innerHeight - height - 8))}px`;
  });
  node.addEventListener("pointerleave", () => { tip.hidden = true; });
  return node;
}

export const about = (k, us) => [k.what, `${k.component} · ${k.shape}`, `${micros(us)}, ${number(k.bytes / us / 1e3)} GB/s, ${bytes(k.bytes)}`];

// Time by component: a strip of all kernels and a bar for each component.
export function budget(report, pick) {
  const parts = [...report.budget].sort((a, b) => b.us - a.us);
  const most = Math.max(...parts.map(p => p.share), 1e-9);
  const strip = h("div", { class: "mosaic", role: "img", "aria-label": parts.map(p => `${p.component} ${percent(p.share)}`).join(", ") });
  const table = h("div", { class: "budget" });
  for (const p of parts) {
    const own = report.kernels.map(k => [k, k.share * (k.components.find(c => c[0] === p.component)?.[1] ?? 0)])
      .filter(([, share]) => share > 0).sort((a, b) => b[1] - a[1]);
    strip.append(h("div", { css: { flex: `${1e3 * p.share} 1 0` } }, ...own.map(([k, share], n) => tips(
      h("i", { class: n % 2 ? "odd" : "", css: { flex: `${1e6 * share} 1 0`, background: color(p.component) }, onclick: () => pick(k.id) }),
      () => [k.what, `${p.component} · ${k.shape}`, `${percent(share)} of the step, ${k.calls} × ${micros(k.us)}`]))));
    table.append(h("div", {}, key(p.component), p.component),
      h("div", { class: "bar", css: { width: `${100 * p.share / most}%`, background: color(p.component) } }),
      h("div", { class: "num" }, percent(p.share)), h("div", { class: "num" }, micros(p.us)), h("div", { class: "num soft" }, `${number(p.gb_s)} GB/s`));
  }
  return [strip, table];
}

const { log10 } = Math;
const tick = e => e >= 0 && e < 4 ? String(10 ** e) : e < 0 && e > -4 ? (10 ** e).toFixed(-e) : `1e${e}`;

// Speed of arithmetic over operations a byte, both logarithmic; a circle's area is its kernel's share of the time.
export function roofline(report, pick) {
  const W = 470, H = 372, left = 46, bottom = 36, top = 12, right = 12;
  const { bandwidth_gb_s: bandwidth, peaks } = report;
  const points = report.kernels.filter(k => k.operations > 0 && k.bytes > 0 && k.us > 0)
    .map(k => ({ k, x: k.operations / k.bytes, y: k.gop_s })).sort((a, b) => b.k.share - a.k.share);
  const roof = Math.max(...peaks.map(p => p.gop_s), ...points.map(p => p.y), 1);
  const xs = [...points.map(p => p.x), ...peaks.map(p => p.gop_s / bandwidth * 2)];
  const x0 = Math.floor(log10(Math.min(...xs, 1))), x1 = Math.ceil(log10(Math.max(...xs, 10)));
  const y0 = Math.floor(log10(Math.min(...points.map(p => p.y), roof / 100))), y1 = Math.ceil(log10(roof * 1.1));
  const X = v => left + (log10(v) - x0) / (x1 - x0) * (W - left - right);
  const Y = v => H - bottom - (log10(v) - y0) / (y1 - y0) * (H - bottom - top);
  const svg = s("svg", { class: "plot", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `Roofline of ${points.length} kernels below ${number(bandwidth)} GB/s` });
  for (let e = x0; e <= x1; e++) svg.append(s("line", { class: "grid", x1: X(10 ** e), x2: X(10 ** e), y1: top, y2: H - bottom }), s("text", { x: X(10 ** e), y: H - bottom + 15, "text-anchor": "middle" }, tick(e)));
  for (let e = y0; e <= y1; e++) svg.append(s("line", { class: "grid", x1: left, x2: W - right, y1: Y(10 ** e), y2: Y(10 ** e) }), s("text", { x: left - 7, y: Y(10 ** e) + 4, "text-anchor": "end" }, tick(e)));
  const middle = (H - bottom + top) / 2;
  svg.append(s("text", { x: (left + W - right) / 2, y: H - 4, "text-anchor": "middle" }, "operations a byte"),
    s("text", { x: 11, y: middle, "text-anchor": "middle", transform: `rotate(-90 11 ${middle})` }, "Gop/s"),
    s("clipPath", { id: "plot-area" }, s("rect", { x: left, y: top, width: W - left - right, height: H - bottom - top })));
  const inside = s("g", { "clip-path": "url(#plot-area)" });
  const highest = peaks.length ? Math.max(...peaks.map(p => p.gop_s)) : 10 ** y1;
  const bend = highest / bandwidth, near = 10 ** x0 * 1.25;
  inside.append(s("line", { class: "roof", x1: X(10 ** x0), y1: Y(10 ** x0 * bandwidth), x2: X(bend), y2: Y(highest) }));
  const slope = Math.atan2(Y(highest) - Y(highest / 100), X(bend) - X(bend / 100)) * 180 / Math.PI;
  inside.append(s("text", { class: "halo", x: X(near), y: Y(near * bandwidth) - 6, transform: `rotate(${slope} ${X(near)} ${Y(near * bandwidth) - 6})` }, `memory, ${number(bandwidth)} GB/s`));
  for (const p of peaks) {
    inside.append(s("line", { class: `roof${p.gop_s === highest ? "" : " lower"}`, x1: X(p.gop_s / bandwidth), x2: W - right, y1: Y(p.gop_s), y2: Y(p.gop_s) }),
      s("text", { class: "halo", x: W - right - 4, y: Y(p.gop_s) + (p.gop_s === highest ? -6 : 14), "text-anchor": "end" }, `${p.what.split(" ")[0]}, ${number(p.gop_s)} Gop/s`, s("title", {}, p.what)));
  }
  for (const { k, x, y } of points) {
    inside.append(tips(s("circle", { class: "dot", cx: X(x), cy: Y(y), r: 3 + 26 * Math.sqrt(k.share), css: { fill: color(k.component), stroke: color(k.component) }, onclick: () => pick(k.id) }),
      () => [...about(k, k.us), `${number(y)} Gop/s, ${number(x)} operations a byte`]));
  }
  svg.append(inside);
  return svg;
}

// The last minute, second by second: an area for what is generated, a line for what is read of prompts.
export function history(points, length) {
  const W = 600, H = 120, floor = H - 1;
  const most = Math.max(1, ...points.map(p => p.generated));
  const mostRead = Math.max(1, ...points.map(p => p.read));
  const X = n => W - (points.length - 1 - n) * W / (length - 1);
  const line = (of, top) => points.map((p, n) => `${n ? "L" : "M"}${X(n).toFixed(1)} ${(floor - of(p) / top * (H - 10)).toFixed(1)}`).join("");
  const svg = s("svg", { class: "plot history", viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", role: "img", "aria-label": `Tokens a second of the last minute, at most ${number(most)}` });
  for (let n = 1; n < 4; n++) svg.append(s("line", { class: "grid", x1: 0, x2: W, y1: floor * n / 4, y2: floor * n / 4 }));
  svg.append(s("line", { class: "grid", x1: 0, x2: W, y1: floor, y2: floor }));
  if (points.length > 1) {
    const path = line(p => p.generated, most);
    svg.append(s("path", { class: "area", d: `${path}L${W} ${floor}L${X(0).toFixed(1)} ${floor}Z` }), s("path", { class: "stroke", d: path }));
    if (points.some(p => p.read > 0)) svg.append(s("path", { class: "stroke second", d: line(p => p.read, mostRead) }));
  }
  return [svg, h("span", { class: "peak" }, most > 1 ? `${number(most)} tok/s` : "")];
}
