// The page and a server that only pretends to have a model. In: requests as the page makes them. Out: scripted answers.
//
// Files come from the source tree under the same Content-Security-Policy as from the binary. `node fake-server.mjs [PORT]`
// serves it for a look; tests call `start()` and change `server.mood` and read `server.requests`.

import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { dirname, join } from "node:path";
import { answer, pieces } from "./answers.mjs";

const HERE = dirname(fileURLToPath(import.meta.url));
export const PAGE = join(HERE, "../../app/src/serve/page");
const POLICY = "default-src 'self'; img-src 'self' data:; style-src 'self'; object-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";
const TYPES = { html: "text/html; charset=utf-8", css: "text/css; charset=utf-8", js: "text/javascript; charset=utf-8", svg: "image/svg+xml" };
const CONTEXT = 1024;

const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));
const tokens = text => pieces(text).length;

export async function start(port = 0) {
  // loading: a progress below 1; key: the one that is asked for; busy: how many requests are turned away first.
  const mood = { loading: null, key: null, busy: 0, profileBusy: 0, slow: 1 };
  const requests = [], counts = { generated: 0, read: 0, reused: 0, running: 0 }, cancelled = [];

  const json = (response, status, body, headers = {}) => {
    response.writeHead(status, { "Content-Type": "application/json", ...headers });
    response.end(JSON.stringify(body));
  };

  async function chat(request, response) {
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const body = JSON.parse(Buffer.concat(chunks).toString());
    requests.push(body);
    if (mood.busy > 0) {
      mood.busy--;
      return json(response, 429, { error: { message: "All places are taken.", type: "rate_limit_error" } }, { "Retry-After": "1" });
    }
    const said = answer(body.messages.at(-1).content);
    if (said.error) return json(response, said.status, { error: said.error });
    response.writeHead(200, { "Content-Type": "text/event-stream", "Cache-Control": "no-cache" });
    let gone = false;
    response.on("close", () => {
      if (!response.writableFinished) cancelled.push(body.messages.at(-1).content);
      gone = true;
    });
    const thinks = body.chat_template_kwargs?.enable_thinking !== false;
    const parts = [...(thinks ? pieces(said.reasoning ?? "") : []).map(p => ["reasoning_content", p]), ...pieces(said.content).map(p => ["content", p])];
    const send = data => response.write(`data: ${JSON.stringify({ id: "chatcmpl-1", object: "chat.completion.chunk", created: 0, model: "storyteller", ...data })}\n\n`);
    const prompt = body.messages.reduce((sum, m) => sum + tokens(m.content) + 4, 0);
    counts.running++;
    counts.read += prompt;
    send({ choices: [{ index: 0, delta: { role: "assistant" }, finish_reason: null }] });
    await sleep(30 * mood.slow);
    const begun = Date.now() - 1;
    let n = 0;
    for (const [field, text] of parts.slice(0, body.max_tokens ?? parts.length)) {
      if (gone) break;
      if (said.breaksAt === n) {
        counts.running--;
        return response.destroy();
      }
      send({ choices: [{ index: 0, delta: { [field]: text }, finish_reason: null }] });
      counts.generated++;
      n++;
      if (said.pause) await sleep(said.pause * mood.slow); else if (n % 200 === 0) await sleep(1);
    }
    counts.running--;
    if (gone) return undefined;
    send({ choices: [{ index: 0, delta: {}, finish_reason: said.finish ?? (n < parts.length ? "length" : "stop") }], timings: { tokens_per_second: n / (Date.now() - begun) * 1000, first_token_seconds: 0.03 } });
    send({ choices: [], usage: { prompt_tokens: prompt, completion_tokens: n, total_tokens: prompt + n, prompt_tokens_details: { cached_tokens: body.messages.length > 1 ? 4 : 0 } } });
    return response.end("data: [DONE]\n\n");
  }

  const routes = {
    "/health": (_, response) => mood.loading === null ? json(response, 200, { status: "ready" }) : json(response, 503, { status: "loading", progress: mood.loading }),
    "/v1/models": (_, response) => json(response, 200, { object: "list", data: [{ id: "storyteller", object: "model", created: 0, owned_by: "glimmer", context_length: CONTEXT }] }),
    "/v1/chat/completions": chat,
    "/metrics": (_, response) => {
      response.writeHead(200, { "Content-Type": "text/plain; version=0.0.4" });
      response.end(`# TYPE glimmer_generated_tokens_total counter\nglimmer_generated_tokens_total ${counts.generated}\nglimmer_prompt_tokens_total ${counts.read}\nglimmer_reused_tokens_total ${counts.reused}\nglimmer_requests_running ${counts.running}\nglimmer_requests_waiting 0\nglimmer_kv_pages_total 256\nglimmer_kv_pages_used ${16 + counts.running * 8}\n`);
    },
    "/profile": async (_, response) => {
      if (mood.profileBusy > 0) {
        mood.profileBusy--;
        return json(response, 409, { error: { message: "The model is answering.", type: "busy" } }, { "Retry-After": "1" });
      }
      response.writeHead(200, { "Content-Type": "application/json" });
      return response.end(await readFile(join(HERE, "profile.json")));
    },
  };

  const server = createServer(async (request, response) => {
    const path = new URL(request.url, "http://localhost").pathname;
    try {
      if (routes[path]) {
        if (mood.key && path !== "/health" && request.headers.authorization !== `Bearer ${mood.key}`) return json(response, 401, { error: { message: "The API key is missing or wrong.", type: "invalid_request_error", code: "invalid_api_key" } });
        return await routes[path](request, response);
      }
      const name = path === "/" ? "index.html" : path.slice(1);
      if (!/^[\w-]+\.(html|css|js|svg)$/.test(name)) throw new Error("no such file");
      const text = await readFile(join(PAGE, name));
      response.writeHead(200, { "Content-Type": TYPES[name.split(".").pop()], "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff" });
      return response.end(text);
    } catch {
      if (response.headersSent) return response.destroy();
      return json(response, 404, { error: { message: `Nothing at ${path}.` } });
    }
  });
  await new Promise(resolve => server.listen(port, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${server.address().port}`, mood, requests, cancelled,
    // As if the program had ended, and as if it came back.
    stop: () => new Promise(resolve => {
      server.closeAllConnections();
      server.close(resolve);
    }),
    again: at => new Promise(resolve => server.listen(at, "127.0.0.1", resolve)),
  };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { url } = await start(Number(process.argv[2] ?? 8080));
  console.log(url);
}
