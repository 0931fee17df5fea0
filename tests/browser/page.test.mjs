// The page in headless Chromium against the fake server: what a person does, and what they then see.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { readFile } from "node:fs/promises";
import { answered, ask, launch, open } from "./browser.mjs";
import { HOSTILE } from "./answers.mjs";
import { start } from "./fake-server.mjs";

let browser, server;
before(async () => {
  [browser, server] = await Promise.all([launch(), start()]);
});
after(async () => {
  await browser.close();
  await server.stop();
});

// One test with a fresh browser profile; a page with faults fails it.
const scene = (name, work, options) => test(name, async () => {
  const { page, close } = await open(browser, server.url, options);
  await work(page);
  await close();
});
const texts = locator => locator.allTextContents();
const last = () => server.requests.at(-1);

// The page draws a frame after what one does, and follows links later still: asked again until it holds.
async function soon(check) {
  for (const end = Date.now() + 10_000; ;) {
    try {
      return await check();
    } catch (e) {
      if (Date.now() > end) throw e;
      await new Promise(resolve => setTimeout(resolve, 30));
    }
  }
}

scene("a question streams an answer, with its speed and the context in use", async page => {
  await soon(async () => assert.equal(await page.locator(".starter").count(), 4));
  await ask(page, "Tell me a story");
  await page.locator(".reply.running").waitFor();
  await soon(async () => assert.equal(await page.getAttribute("#send", "aria-label"), "Stop (Esc)"));
  const reply = await answered(page);
  await soon(async () => assert.match(await reply.textContent(), /Once there was a wise frog/));
  await soon(async () => assert.equal(await reply.locator("em").textContent(), "wonderful"));
  await soon(async () => assert.match(await reply.locator(".facts").textContent(), /^\d+ tokens · [\d.,]+ tok\/s$/));
  await soon(async () => assert.equal(await reply.locator(".facts").getAttribute("title"), "First token after 30.0 ms"));
  await soon(async () => assert.match(await page.textContent("#context-text"), /^\d+ of 1,024 tokens$/));
  await soon(async () => assert.equal(await page.textContent("#title"), "Tell me a story"));
  await soon(async () => assert.equal(await page.locator(".caret").count(), 0));
  const body = last();
  assert.equal(body.stream, true);
  assert.deepEqual(body.stream_options, { include_usage: true });
  assert.equal("temperature" in body || "max_tokens" in body, false);
});

scene("a starter asks its question", async page => {
  await page.click(".starter >> nth=0");
  await answered(page);
  await soon(async () => assert.match(await page.textContent(".bubble"), /frog and a bicycle/));
});

scene("stop keeps what came, frees the server, and one can go on", async page => {
  await ask(page, "Go on forever");
  await page.waitForFunction(() => document.querySelector(".reply .answer")?.textContent.length > 40);
  await page.keyboard.press("Escape");
  const reply = await answered(page);
  await soon(async () => assert.match(await reply.locator(".facts").textContent(), /^Stopped/));
  await soon(() => assert.deepEqual(server.cancelled, ["Go on forever"]));
  await ask(page, "Tell me a story");
  await page.waitForFunction(() => document.querySelectorAll(".reply").length === 2);
  await page.click("#send");
  await answered(page);
  assert.equal(last().messages.length, 3);
});

scene("regenerate and edit keep the other versions", async page => {
  await ask(page, "Tell me a story");
  await answered(page);
  await page.getByRole("button", { name: "Regenerate" }).click();
  await answered(page);
  const branches = page.locator(".reply .branches");
  await soon(async () => assert.equal(await branches.textContent(), "2 / 2"));
  await branches.getByRole("button", { name: "Previous alternative" }).click();
  await soon(async () => assert.equal(await branches.textContent(), "1 / 2"));
  await page.hover(".question");
  await page.getByRole("button", { name: "Edit message" }).click();
  await page.fill(".edit-area", "Show me code");
  await page.press(".edit-area", "Enter");
  await page.locator(".code").waitFor();
  await answered(page);
  assert.deepEqual(last().messages, [{ role: "user", content: "Show me code" }]);
  await soon(async () => assert.equal(await page.locator(".question .branches").textContent(), "2 / 2"));
  await page.getByRole("button", { name: "Previous alternative" }).first().click();
  await soon(async () => assert.equal(await page.textContent(".bubble"), "Tell me a story"));
  await soon(async () => assert.match(await page.locator(".reply").textContent(), /wise frog/));
});

scene("a reload keeps the conversation and what was being written", async page => {
  await ask(page, "Show me code");
  await answered(page);
  await page.fill("#input", "half a thou");
  await page.reload();
  await page.locator(".code").waitFor();
  await soon(async () => assert.equal(await page.locator(".question").count(), 1));
  await soon(async () => assert.equal(await page.inputValue("#input"), "half a thou"));
  await soon(async () => assert.equal(await page.locator(".chat-entry.chosen").count(), 1));
  await page.fill("#input", "");
  await ask(page, "Go on forever");
  await page.waitForFunction(() => document.querySelector(".reply:last-child .answer")?.textContent.length > 200);
  await page.waitForTimeout(600);
  await page.reload();
  const reply = await answered(page);
  await soon(async () => assert.match(await reply.textContent(), /word word[^]*Stopped/));
});

scene("reasoning is folded, says how long it took, and can be turned off", async page => {
  await ask(page, "Why is the sky blue?");
  await page.locator(".thinking.live").waitFor();
  await soon(async () => assert.match(await page.textContent(".thought-label"), /^Thinking…/));
  await soon(async () => assert.equal(await page.locator(".thinking[open]").count(), 0));
  await answered(page);
  await soon(async () => assert.match(await page.textContent(".thought-label"), /^Thought for /));
  const place = () => page.evaluate(() => document.querySelector(".thinking summary").getBoundingClientRect().top);
  const before = await place();
  await page.click(".thinking summary");
  await soon(async () => assert.ok(Math.abs(await place() - before) < 2));
  await soon(async () => assert.deepEqual(await texts(page.locator(".thought-text li")), ["sunlight has all colours", "blue is scattered the most"]));
  await page.click("#think");
  await page.click("#think");
  await soon(async () => assert.equal((await page.textContent("#think")).trim(), "Thinking: off"));
  await ask(page, "Why is the sky blue?");
  await page.waitForFunction(() => document.querySelectorAll(".reply").length === 2);
  const reply = await answered(page);
  await soon(async () => assert.equal(await reply.locator(".thinking").isVisible(), false));
  assert.deepEqual(last().chat_template_kwargs, { enable_thinking: false });
  assert.equal(last().messages[1].content.includes("curious"), false);
});

scene("settings go with the request and stay after a reload", async page => {
  await page.keyboard.press("Control+,");
  await page.fill("#set-system", "Answer like a pirate.");
  for (const [name, value] of Object.entries({ temperature: "0.3", top_p: "0.9", top_k: "40", min_p: "0.05", repetition_penalty: "1.1", max_tokens: "7", seed: "42" })) await page.fill(`#set-${name}`, value);
  await page.click("label[for=thinking-on]");
  await page.keyboard.press("Escape");
  await page.reload();
  await page.locator("#model-name:not(:empty)").waitFor();
  await ask(page, "Tell me a story");
  const reply = await answered(page);
  const { messages, model, stream, stream_options, ...rest } = last();
  assert.deepEqual(rest, { temperature: 0.3, top_p: 0.9, top_k: 40, min_p: 0.05, repetition_penalty: 1.1, max_tokens: 7, seed: 42, chat_template_kwargs: { enable_thinking: true } });
  assert.deepEqual(messages[0], { role: "system", content: "Answer like a pirate." });
  assert.equal(model, "storyteller");
  await soon(async () => assert.match(await reply.locator(".facts").textContent(), /^Reached the longest answer allowed · 7 tokens/));
  await page.click("#open-settings");
  await soon(async () => assert.equal(await page.inputValue("#set-seed"), "42"));
  await page.fill("#set-temperature", "9");
  await page.getByRole("button", { name: "All back to automatic" }).click();
  await soon(async () => assert.equal(await page.inputValue("#set-temperature"), ""));
});

scene("dark and light: the system's, until one is chosen", async page => {
  const theme = () => page.evaluate(() => document.documentElement.dataset.theme);
  const paper = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await soon(async () => assert.equal(await theme(), "light"));
  const light = await paper();
  await page.emulateMedia({ colorScheme: "dark" });
  await soon(async () => assert.equal(await theme(), "dark"));
  await soon(async () => assert.notEqual(await paper(), light));
  await page.click("#theme");
  await soon(async () => assert.equal(await theme(), "light"));
  await page.reload();
  await page.locator("#model-name:not(:empty)").waitFor();
  await soon(async () => assert.equal(await theme(), "light"));
});

scene("a narrow screen has a drawer, nothing sticks out, and fields do not zoom", async page => {
  const fits = () => page.evaluate(() => document.documentElement.scrollWidth <= innerWidth && [...document.querySelectorAll(".main *")].every(e => e.getBoundingClientRect().right <= innerWidth + 1 || e.closest(".code, .table, .table-scroll, .offscreen")));
  await soon(async () => assert.ok(await fits()));
  await page.setViewportSize({ width: 320, height: 480 });
  await soon(async () => assert.equal(await page.evaluate(() => document.getElementById("scroller").scrollTop), 0));
  await soon(async () => assert.equal(await page.locator("#jump").isVisible(), false));
  await soon(async () => assert.ok(await fits()));
  await page.setViewportSize({ width: 390, height: 844 });
  await page.fill("#input", "Show me code");
  await page.click("#send");
  await answered(page);
  await soon(async () => assert.ok(await fits()));
  await soon(async () => assert.equal(await page.locator("#sidebar").isVisible(), false));
  await page.click("#toggle-sidebar");
  await page.locator(".chat-name").waitFor();
  await page.mouse.click(370, 400);
  await page.waitForFunction(() => !document.body.classList.contains("drawer"));
  for (const id of ["#input", "#search"]) assert.ok(parseFloat(await page.evaluate(s => getComputedStyle(document.querySelector(s)).fontSize, id)) >= 16, id);
  await page.fill("#input", "line");
  await page.press("#input", "Enter");
  await soon(async () => assert.equal(await page.inputValue("#input"), "line\n"));
  await page.click("#to-performance");
  await page.locator(".budget").waitFor();
  await soon(async () => assert.ok(await fits()));
}, { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true });

scene("keys: new line, new chat, focus, edit the last message, list of chats", async page => {
  await page.fill("#input", "Tell");
  await page.press("#input", "Shift+Enter");
  await page.keyboard.type("me a story");
  await page.press("#input", "Enter");
  await answered(page);
  assert.equal(last().messages[0].content, "Tell\nme a story");
  await page.press("#input", "ArrowUp");
  await soon(async () => assert.equal(await page.inputValue(".edit-area"), "Tell\nme a story"));
  await page.keyboard.press("Escape");
  await soon(async () => assert.equal(await page.locator(".edit-area").count(), 0));
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("/");
  await soon(async () => assert.equal(await page.evaluate(() => document.activeElement.id), "input"));
  await page.keyboard.press("Control+k");
  await soon(async () => assert.equal(await page.locator(".question").count(), 0));
  await page.keyboard.press("Control+b");
  await soon(async () => assert.equal(await page.locator("#sidebar").isVisible(), false));
  await page.keyboard.press("Control+b");
  await page.focus("#new-chat");
  for (let n = 0; n < 5; n++) {
    await page.keyboard.press("Tab");
    await soon(async () => assert.notEqual(await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle), "none"));
  }
});

scene("several conversations: search, rename, delete and undo, answers that go on elsewhere", async page => {
  await ask(page, "Go on forever");
  await page.locator(".reply.running").waitFor();
  await page.keyboard.press("Control+k");
  await ask(page, "Show me code");
  await answered(page);
  await soon(async () => assert.equal(await page.locator(".chat-entry").count(), 2));
  await soon(async () => assert.equal(await page.locator(".chat-entry .pulse").count(), 1));
  await page.fill("#search", "palindrome");
  await soon(async () => assert.deepEqual(await texts(page.locator(".chat-name")), ["Show me code"]));
  await page.fill("#search", "");
  await page.locator(".chat-name", { hasText: "forever" }).click();
  await soon(async () => assert.ok((await page.locator(".reply.running .answer").textContent()).length > 20));
  await page.keyboard.press("Escape");
  await answered(page);
  const more = async entry => {
    await page.hover(".chat-entry.chosen");
    await page.locator(".chat-entry.chosen .icon-button").click();
    await page.getByRole("menuitem", { name: entry }).click();
  };
  await more("Rename");
  await page.fill(".rename", "Endless");
  await page.press(".rename", "Enter");
  await soon(async () => assert.equal(await page.textContent("#title"), "Endless"));
  await more("Delete");
  await soon(async () => assert.deepEqual(await texts(page.locator(".chat-name")), ["Show me code"]));
  await page.getByRole("button", { name: "Undo" }).click();
  await soon(async () => assert.equal(await page.locator(".chat-entry").count(), 2));
  const other = await page.context().newPage();
  await other.goto(server.url);
  await other.locator(".chat-entry").first().waitFor();
  await soon(async () => assert.deepEqual((await texts(other.locator(".chat-name"))).sort(), ["Endless", "Show me code"]));
  await other.click("#all-chats");
  await other.getByRole("menuitem", { name: "Delete all chats" }).click();
  await page.waitForFunction(() => document.querySelectorAll(".chat-entry").length === 0);
  await other.getByRole("button", { name: "Undo" }).click();
  await page.waitForFunction(() => document.querySelectorAll(".chat-entry").length === 2);
});

scene("export to Markdown and JSON, and import again", async page => {
  await ask(page, "Show me code");
  await answered(page);
  const fetched = async entry => {
    await page.click("#export");
    const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("menuitem", { name: entry }).click()]);
    return { name: download.suggestedFilename(), path: await download.path(), text: await readFile(await download.path(), "utf8") };
  };
  const markdown = await fetched("Export as Markdown");
  assert.equal(markdown.name, "show-me-code.md");
  assert.match(markdown.text, /^# Show me code\n\n## You\n\nShow me code\n\n## Glimmer \(storyteller\)\n\n[^]*```python/);
  const json = await fetched("Export as JSON");
  assert.equal(JSON.parse(json.text).conversations.length, 1);
  await page.setInputFiles("#file", json.path);
  await page.waitForFunction(() => document.querySelectorAll(".chat-entry").length === 2);
  await soon(async () => assert.equal(await page.locator(".reply .code").count(), 1));
  await page.setInputFiles("#file", { name: "x.json", mimeType: "application/json", buffer: Buffer.from("[1]") });
  await soon(async () => assert.match(await page.locator(".toast.bad").textContent(), /not an export/));
});

scene("code is labelled, coloured and copied as it is; messages too", async page => {
  await ask(page, "Show me code");
  const reply = await answered(page);
  await soon(async () => assert.equal(await reply.locator(".language").textContent(), "python"));
  await soon(async () => assert.ok(await reply.locator(".t-keyword").count() > 4));
  await reply.locator(".copy-code").click();
  const copied = () => page.evaluate(() => navigator.clipboard.readText());
  await soon(async () => assert.match(await copied(), /^def is_palindrome[^]*True, False, True$/));
  await page.getByRole("button", { name: "Copy answer" }).click();
  await soon(async () => assert.match(await copied(), /^Here is a small[^]*```python/));
});

scene("hostile answers stay text", async page => {
  const allowed = new Set(["p", "h2", "br", "a", "code", "pre", "div", "span", "button", "blockquote", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "strong", "em"]);
  for (const name of Object.keys(HOSTILE)) {
    await page.keyboard.press("Control+k");
    await ask(page, `hostile ${name}`);
    const reply = await answered(page);
    const found = await reply.locator(".answer").evaluate(root => {
      const all = [...root.querySelectorAll("*")].filter(e => !e.closest(".code-head svg"));
      return {
        tags: [...new Set(all.map(e => e.localName))],
        handlers: all.flatMap(e => e.getAttributeNames().filter(n => n.startsWith("on") || n === "style" || n === "src")),
        links: all.filter(e => e.localName === "a").map(e => e.getAttribute("href")),
        wide: root.scrollWidth > root.clientWidth + 1,
      };
    });
    assert.deepEqual(found.tags.filter(t => !allowed.has(t)), [], name);
    assert.deepEqual(found.handlers, [], name);
    for (const link of found.links) assert.match(link, /^https:\/\/(evil\.example|example\.com)\//, name);
    assert.equal(found.wide, false, name);
    await soon(async () => assert.equal(await page.evaluate(() => window.pwned), undefined, name));
    if (name === "image") assert.match(await reply.textContent(), /<img src=x onerror="window\.pwned=1">/);
    if (name === "links") assert.deepEqual(found.links, ["https://evil.example/x.png", "https://example.com/a_(b)"]);
    if (name === "rtl") assert.equal(await reply.locator(".unseen").count(), 5);
    if (name === "code") assert.match(await reply.locator(".code").first().textContent(), /<\/code><\/pre><script>/);
  }
});

scene("a growing answer leaves finished blocks and a selection alone", async page => {
  await ask(page, "Give me lines");
  await page.waitForFunction(() => document.querySelectorAll(".reply p").length > 6);
  await page.evaluate(() => {
    const [first] = document.querySelectorAll(".reply p");
    first.dataset.mark = "1";
    getSelection().selectAllChildren(first);
    window.changes = 0;
    new MutationObserver(records => { window.changes += records.length; }).observe(first, { subtree: true, childList: true, characterData: true });
  });
  const reply = await answered(page);
  await soon(async () => assert.equal(await reply.locator("p").count(), 120));
  await soon(async () => assert.deepEqual(await page.evaluate(() => [document.querySelector(".reply p").dataset.mark, getSelection().toString().trim(), window.changes]), ["1", "Line 1.", 0]));
});

scene("the view follows the answer until one scrolls up, and jumps back on wish", async page => {
  await ask(page, "Give me lines");
  await page.waitForFunction(() => document.querySelectorAll(".reply p").length > 30);
  const away = () => page.evaluate(() => { const s = document.getElementById("scroller"); return s.scrollHeight - s.scrollTop - s.clientHeight; });
  await soon(async () => assert.ok(await away() < 60));
  await page.mouse.move(700, 300);
  await page.mouse.wheel(0, -400);
  await page.locator("#jump").waitFor();
  await page.waitForTimeout(300);
  const top = await page.evaluate(() => document.getElementById("scroller").scrollTop);
  await page.waitForTimeout(150);
  await soon(async () => assert.ok(Math.abs(await page.evaluate(() => document.getElementById("scroller").scrollTop) - top) < 3));
  await page.click("#jump");
  await soon(async () => assert.ok(await away() < 60));
  await answered(page);
  await soon(async () => assert.ok(await away() < 60));
});

scene("failures say what happened and what to do", async page => {
  const failure = page.locator(".reply:last-child .failure");
  await ask(page, "The context is full");
  await soon(async () => assert.match(await failure.textContent(), /The context is full.*2048 tokens.*New chat/));
  await page.getByRole("button", { name: "New chat" }).last().click();
  await soon(async () => assert.equal(await page.locator(".message").count(), 0));
  await ask(page, "Please crash");
  await soon(async () => assert.match(await failure.textContent(), /Something went wrong.*gave up.*Try again/));
  await answered(page);
  await ask(page, "Please break");
  await page.waitForFunction(() => /Connection lost/.test(document.querySelector(".reply:last-child .failure")?.textContent));
  await soon(async () => assert.match(await page.locator(".reply").last().textContent(), /Once there was/));
  server.mood.busy = 1;
  const asked = server.requests.length;
  await ask(page, "Tell me a story");
  await page.waitForFunction(() => /All places are taken\. Trying again in/.test(document.querySelector(".reply:last-child .status")?.textContent));
  const reply = await answered(page);
  await soon(async () => assert.match(await reply.textContent(), /wise frog/));
  assert.equal(server.requests.length, asked + 2);
});

test("a key is asked for, and the page works with it", async () => {
  server.mood.key = "secret";
  const { page, close } = await open(browser, server.url);
  await page.locator("dialog.ask").waitFor();
  await page.keyboard.press("Escape");
  await soon(async () => assert.equal(await page.textContent("#model-name"), "API key needed"));
  await ask(page, "Tell me a story");
  await page.getByRole("button", { name: "Enter key" }).click();
  await page.fill("dialog.ask input", "secret");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => /wise frog/.test(document.querySelector(".reply:last-child")?.textContent));
  await answered(page);
  await soon(async () => assert.equal(await page.locator(".failure:visible").count(), 0));
  await soon(async () => assert.equal(await page.textContent("#model-name"), "storyteller"));
  server.mood.key = null;
  await close();
});

test("the page waits while the model loads, and finds a server that was away", async () => {
  server.mood.loading = 0.4;
  const own = await start(), port = Number(new URL(own.url).port);
  own.mood.loading = 0.4;
  server.mood.loading = null;
  const context = await browser.newContext(), page = await context.newPage();
  await page.goto(own.url);
  await page.waitForFunction(() => document.getElementById("loading-note").textContent === "Loading the model, 40%");
  own.mood.loading = null;
  await page.locator("#loading").waitFor({ state: "hidden" });
  await page.locator("#model-name:not(:empty)").waitFor();
  await own.stop();
  await ask(page, "Tell me a story");
  await page.waitForFunction(() => /Connection lost/.test(document.querySelector(".failure")?.textContent));
  await own.again(port);
  await page.getByRole("button", { name: "Try again" }).click();
  const reply = await answered(page);
  await soon(async () => assert.match(await reply.textContent(), /wise frog/));
  await context.close();
  await own.stop();
});

scene("the Performance tab: live speed, budget, roofline, kernels, a busy model", async page => {
  server.mood.profileBusy = 1;
  await ask(page, "Go on forever");
  await page.click("#to-performance");
  await page.waitForFunction(() => /busy with an answer/.test(document.getElementById("profile-note").textContent));
  await page.locator(".budget").waitFor();
  await page.waitForFunction(() => parseFloat(document.querySelector("#live-tiles b")?.textContent) > 5);
  const profile = JSON.parse(await readFile(new URL("profile.json", import.meta.url)));
  await soon(async () => assert.equal(await page.locator(".dot").count(), profile.kernels.filter(k => k.operations > 0 && k.bytes > 0).length));
  await soon(async () => assert.equal(await page.locator(".mosaic > div").count(), profile.budget.length));
  await soon(async () => assert.equal(await page.locator("tr.kernel").count(), profile.kernels.length));
  await page.fill("#profile input[type=search]", "experts");
  await soon(async () => assert.ok(await page.locator("tr.kernel").count() < profile.kernels.length));
  await page.locator("tr.kernel").first().click();
  await soon(async () => assert.match(await page.locator(".detail pre").textContent(), /^kernel /));
  await soon(async () => assert.equal(await page.evaluate(() => location.hash), "#performance"));
  await page.click("#to-chat");
  await soon(async () => assert.equal(await page.locator("#chat-view").isVisible(), true));
  await soon(async () => assert.match(await page.evaluate(() => location.hash), /^#chat=\w+$/));
  await page.keyboard.press("Escape");
  await answered(page);
});
