// The picture in the README: `node picture.mjs --url http://127.0.0.1:8080 --output docs/serve.png`, from a real server with the
// model inside the program. What it shows was answered then and there.

import { answered, launch, open } from "./browser.mjs";

const value = (name, otherwise) => process.argv.includes(name) ? process.argv[process.argv.indexOf(name) + 1] : otherwise;
const url = value("--url", "http://127.0.0.1:8080").replace(/\/$/, ""), output = value("--output", "docs/serve.png");
const CHATS = [
  "Write a poem about a warm winter coat.",
  "Tell me a story about a dog who finds a boat.",
  "What does a lighthouse do at night?",
  "Tell me a story about a shy dragon and a lantern.",
];

const browser = await launch();
const { page, close } = await open(browser, url, { colorScheme: value("--theme", "dark"), deviceScaleFactor: 1.5 });
await page.evaluate(seed => localStorage.setItem("glimmer.settings", JSON.stringify({ seed, thinking: "on" })), Number(value("--seed", "3")));
await page.reload();
await page.locator("#model-name:not(:empty)").waitFor();
for (const [n, text] of [...CHATS, "Tell me a story about a frog and a bicycle."].entries()) {
  if (n) await page.click("#new-chat");
  await page.fill("#input", text);
  await page.press("#input", "Enter");
  await page.waitForFunction(() => document.querySelector(".reply"));
  await answered(page);
}
await page.locator(".thinking:visible summary").first().click();
await page.evaluate(() => document.getElementById("scroller").scrollTo(0, 0));
await page.focus("#input");
await page.mouse.move(1270, 400);
await page.waitForTimeout(400);
await page.screenshot({ path: output });
await close();
await browser.close();
