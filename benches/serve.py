#!/usr/bin/env python3
"""Tokens a second of an OpenAI-compatible server for several numbers of parallel answers.

    benches/serve.py http://127.0.0.1:8080 [ANOTHER...] [--parallel 1,8] [--tokens 120] [--rounds 5]

Servers are asked in turns; the medians of the rounds and the ratios to one answer are printed. Tokens are those that the
server counted; an answer that ends early has fewer.
"""
import argparse, json, statistics, threading, time, urllib.request

WORDS = ["frog", "dragon", "bicycle", "lighthouse", "snail", "robot", "garden", "cloud", "whale", "clock"]


def answer(url, i, tokens):
    prompt = f"Once upon a time there was a {WORDS[i % len(WORDS)]} number {i} who"
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "cache_prompt": False}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as r:
        return json.load(r)["usage"]["completion_tokens"]


def measure(url, parallel, tokens):
    counts = [0] * parallel

    def one(i):
        counts[i] = answer(url, i, tokens)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(parallel)]
    start = time.monotonic()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return sum(counts) / (time.monotonic() - start)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("url", nargs="+")
    p.add_argument("--parallel", default="1,8")
    p.add_argument("--tokens", type=int, default=120)
    p.add_argument("--rounds", type=int, default=5)
    a = p.parse_args()
    numbers = [int(n) for n in a.parallel.split(",")]
    found = {(u, n): [] for u in a.url for n in numbers}
    for u in a.url:
        measure(u, max(numbers), a.tokens)
    for _ in range(a.rounds):
        for n in numbers:
            for u in a.url:
                found[u, n].append(measure(u, n, a.tokens))
    for u in a.url:
        first = statistics.median(found[u, numbers[0]])
        for n in numbers:
            m = statistics.median(found[u, n])
            print(json.dumps({"url": u, "parallel": n, "tokens_per_second": round(m, 1), "times": round(m / first, 2),
                              "runs": [round(r, 1) for r in found[u, n]]}))


main()
