// Chromium for tests. Out: pages that remember what went wrong in them.
//
// The browser is the system's; playwright-core only drives it. A page that broke the Content-Security-Policy, threw, or asked
// for anything outside its own server fails its test.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../../", import.meta.url));
const { chromium } = createRequire(`${root}target/browser/package.json`)("playwright-core");
const executablePath = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);

export const launch = () => chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--font-render-hinting=none"] });

export async function open(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, permissions: ["clipboard-read", "clipboard-write"], colorScheme: "light", acceptDownloads: true, ...options });
  const page = await context.newPage();
  const faults = [];
  page.on("pageerror", e => faults.push(`threw: ${e.message}`));
  page.on("console", m => {
    if (/Content Security Policy|Refused to/i.test(m.text())) faults.push(m.text());
  });
  page.on("request", r => {
    if (!r.url().startsWith(url) && !/^(blob|data):/.test(r.url())) faults.push(`asked for ${r.url()}`);
  });
  page.on("dialog", d => {
    faults.push(`opened a dialog: ${d.message()}`);
    d.dismiss();
  });
  page.setDefaultTimeout(10_000);
  await page.goto(url);
  await page.locator("#model-name:not(:empty)").waitFor();
  const close = async () => {
    await context.close();
    assert.deepEqual(faults, []);
  };
  return { page, faults, close };
}

export async function ask(page, text) {
  await page.fill("#input", text);
  await page.press("#input", "Enter");
}

// The last answer, complete. What was asked just before is on the page two frames later.
export async function answered(page) {
  await page.evaluate(() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))));
  await page.waitForFunction(() => document.querySelector(".reply:last-child:not(.running) .actions > *"));
  return page.locator(".reply").last();
}
