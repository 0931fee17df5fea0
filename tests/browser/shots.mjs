// Pictures of the page, to look at. `node shots.mjs FOLDER` writes them, from the fake server.

import { mkdir } from "node:fs/promises";
import { answered, ask, launch, open } from "./browser.mjs";
import { start } from "./fake-server.mjs";

const folder = process.argv[2] ?? "target/browser/shots";
await mkdir(folder, { recursive: true });
const server = await start(), browser = await launch();
const SIZES = { wide: { width: 1280, height: 800 }, phone: { width: 390, height: 844 } };

for (const [size, viewport] of Object.entries(SIZES)) {
  for (const colorScheme of ["light", "dark"]) {
    const phone = size === "phone";
    const { page, close } = await open(browser, server.url, { viewport, colorScheme, deviceScaleFactor: phone ? 2 : 1, hasTouch: phone, isMobile: phone });
    const shot = name => page.screenshot({ path: `${folder}/${size}-${colorScheme}-${name}.png` });
    const send = async text => {
      await page.fill("#input", text);
      await page.click("#send");
    };
    await shot("empty");
    await send("Tell me a story about a frog and a bicycle.");
    await answered(page);
    if (!phone) await page.click("#new-chat");
    else await page.click("#new-chat-top");
    await send("Explain why the sky is blue, as you would to a curious child.");
    await page.waitForTimeout(700);
    await shot("thinking");
    await answered(page);
    await page.click(".thinking summary");
    await send("Write a Python function that checks whether a word is a palindrome, with an example.");
    await answered(page);
    await page.waitForTimeout(200);
    await shot("code");
    await page.click("#open-settings");
    await page.waitForTimeout(350);
    await shot("settings");
    await page.keyboard.press("Escape");
    if (phone) {
      await page.click("#toggle-sidebar");
      await page.waitForTimeout(350);
      await shot("drawer");
      await page.click("#close-sidebar");
    }
    await send("The context is full now");
    await answered(page);
    await shot("failure");
    await send("Go on forever");
    await page.click("#to-performance");
    await page.waitForTimeout(size === "wide" ? 9_000 : 3_500);
    await shot("performance");
    if (phone) {
      await page.evaluate(() => document.getElementById("performance-view").scrollTo(0, 1100));
      await shot("performance-more");
    } else {
      await page.evaluate(() => document.getElementById("performance-view").scrollTo(0, 480));
      await shot("performance-more");
    }
    await close();
  }
}
await browser.close();
await server.stop();
