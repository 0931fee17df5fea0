// The page of a real server: `node smoke.test.mjs --url http://127.0.0.1:8080`. Type, stream, stop, reload, Performance.

import assert from "node:assert/strict";
import { test } from "node:test";
import { answered, ask, launch, open } from "./browser.mjs";

const at = process.argv.indexOf("--url"), url = at < 0 ? null : process.argv[at + 1]?.replace(/\/$/, "");
if (!url) throw new Error("say which server: --url http://127.0.0.1:8080");

test(`the page of ${url}`, async () => {
  const browser = await launch();
  try {
    const { page, close } = await open(browser, url);
    page.setDefaultTimeout(60_000);
    await ask(page, "Tell me a story about a frog and a bicycle.");
    const reply = await answered(page);
    const story = await reply.locator(".answer").textContent();
    assert.ok(story.length > 40, story);
    assert.match(await reply.locator(".facts").textContent(), /\d tokens · [\d.,]+ tok\/s/);
    assert.match(await page.textContent("#context-text"), /^[\d,]+ of [\d,]+ tokens$/);
    await ask(page, "Now tell me a very long story about the sea.");
    await page.waitForFunction(() => document.querySelectorAll(".reply").length === 2 && document.querySelector(".reply:last-child .answer")?.textContent.length > 5);
    await page.keyboard.press("Escape");
    await answered(page);
    await page.reload();
    await page.locator(".reply").nth(1).waitFor();
    assert.equal(await page.locator(".reply").first().locator(".answer").textContent(), story);
    await page.click("#to-performance");
    await page.locator(".budget").waitFor();
    assert.ok(await page.locator(".dot").count() > 0);
    await page.locator("#live-tiles .tile").first().waitFor();
    await close();
  } finally {
    await browser.close();
  }
});
