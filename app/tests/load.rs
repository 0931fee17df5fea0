//! Many clients at once, most of them badly behaved, for some seconds: `cargo test -p glimmer --test load -- --seconds 180`
//! for longer. In the end nothing runs or waits, memory is where it was, and every whole answer at temperature 0 was the
//! one that a single client gets.

#[path = "serve/client.rs"]
mod client;
#[path = "serve/server.rs"]
#[allow(dead_code)]
mod server;

use client::{Reply, Request};
use compiler::rng::Rng;
use serde_json::{Value, json};
use server::Server;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const CLIENTS: usize = 64;
const KEY: &str = "load-key";
/// What memory may grow by from the middle to the end, in bytes: buffers of connections, the allocator's slack.
const SLACK: u64 = 48 << 20;

const PROMPTS: [&str; 6] = [
    "Tell me a story about a dog.",
    "Tell me a story about a cat and a boat.",
    "A story about the sea, please.",
    "Once there was a king",
    "Tell me about a little bird that could not fly.",
    "Why is the bear sad?",
];

#[derive(Default)]
struct Counts {
    whole: AtomicU64,
    refused: AtomicU64,
    vanished: AtomicU64,
    wrong: AtomicU64,
}

fn body(prompt: usize, stream: bool) -> Value {
    json!({
        "messages": [{"role": "user", "content": PROMPTS[prompt]}], "temperature": 0, "max_tokens": 16,
        "chat_template_kwargs": {"enable_thinking": false}, "stream": stream,
    })
}

fn chat(body: &Value) -> Request {
    Request::new("POST", "/v1/chat/completions")
        .header("authorization", &format!("Bearer {KEY}"))
        .body(body.to_string())
}

/// The whole text of an answer, streamed or not.
fn text(reply: &Reply, stream: bool) -> String {
    if !stream {
        return reply.json()["choices"][0]["message"]["content"].as_str().unwrap_or("").into();
    }
    let events = reply.events();
    assert_eq!(events.last().map(|e| &e.1), Some(&json!("[DONE]")), "a stream that ends in order");
    events.iter().filter_map(|(_, e)| e["choices"][0]["delta"]["content"].as_str()).collect()
}

/// One thing that a client does.
fn act(server: &Server, expected: &[String], rng: &mut Rng, counts: &Counts) {
    let prompt = rng.below(PROMPTS.len());
    match rng.below(10) {
        0..=4 => {
            let stream = rng.one_in(2);
            let Ok(reply) = chat(&body(prompt, stream)).try_send(server.address) else {
                panic!("the server broke off a well-formed request");
            };
            match reply.status {
                200 => {
                    assert_eq!(text(&reply, stream), expected[prompt], "{:?}", PROMPTS[prompt]);
                    counts.whole.fetch_add(1, Ordering::Relaxed);
                }
                429 => {
                    assert!(reply.headers.contains_key("retry-after"));
                    counts.refused.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(20));
                }
                other => panic!("status {other}: {}", reply.text()),
            }
        }
        5 | 6 => {
            let mut long = body(prompt, rng.one_in(2));
            long["max_tokens"] = 400.into();
            if let Ok(mut stream) = chat(&long).open(server.address) {
                stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
                let mut some = vec![0; 1 + rng.below(600)];
                let _ = stream.read(&mut some);
                counts.vanished.fetch_add(1, Ordering::Relaxed);
            }
        }
        7 => {
            // Reads its answer byte by byte, with pauses.
            if let Ok(mut stream) = chat(&body(prompt, true)).open(server.address) {
                for _ in 0..rng.below(40) {
                    let _ = stream.read(&mut [0; 8]);
                    std::thread::sleep(Duration::from_millis(5));
                }
                counts.vanished.fetch_add(1, Ordering::Relaxed);
            }
        }
        8 => {
            let (request, status) = match rng.below(3) {
                0 => (Request::new("POST", "/v1/chat/completions").body("{\"messages\": [}"), 401),
                1 => (chat(&body(prompt, false)).body("{\"messages\": [}"), 400),
                _ => (chat(&body(prompt, false)).body("x".repeat(70_000)), 413),
            };
            // A refused body may be cut off before the answer is read.
            if let Ok(reply) = request.try_send(server.address) {
                assert_eq!(reply.status, status, "{}", reply.text());
                counts.wrong.fetch_add(1, Ordering::Relaxed);
            }
        }
        _ => {
            if let Ok(mut stream) = TcpStream::connect(server.address) {
                let garbage: Vec<u8> = (0..rng.below(200)).map(|_| rng.bits() as u8).collect();
                let _ = stream.write_all(&garbage);
                counts.wrong.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Bytes of memory that a process holds.
fn memory(id: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = text.lines().find(|l| l.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

fn metric(server: &Server, name: &str) -> f64 {
    let request = Request::new("GET", "/metrics").header("x-api-key", KEY);
    let page = request.send(server.address).text();
    let line = page.lines().find(|l| l.split(' ').next() == Some(name)).unwrap_or_else(|| panic!("{name}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let given = args.iter().position(|a| a == "--seconds").and_then(|i| args.get(i + 1)?.parse().ok());
    let seconds: u64 = given.unwrap_or(8);
    let server =
        Server::ready(&["--api-key", KEY, "--max-body", "65536", "--parallel", "8", "--queue", "24"]);
    let expected: Vec<String> =
        (0..PROMPTS.len()).map(|p| text(&chat(&body(p, false)).send(server.address).ok(), false)).collect();

    let (stop, counts, middle) = (AtomicBool::new(false), Counts::default(), Mutex::new(None));
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (server, expected, stop, counts) = (&server, &expected, &stop, &counts);
            scope.spawn(move || {
                let mut rng = Rng::new(client as u64 + 1);
                while !stop.load(Ordering::Relaxed) {
                    act(server, expected, &mut rng, counts);
                }
            });
        }
        let (half, began) = (Duration::from_secs(seconds).mul_f64(0.5), Instant::now());
        while began.elapsed() < 2 * half {
            std::thread::sleep(Duration::from_millis(50));
            let mut middle = middle.lock().unwrap();
            if middle.is_none() && began.elapsed() > half {
                *middle = memory(server.child.id());
            }
        }
        stop.store(true, Ordering::Relaxed);
    });

    let began = Instant::now();
    while metric(&server, "glimmer_requests_running") + metric(&server, "glimmer_requests_waiting") > 0.0 {
        assert!(began.elapsed() < Duration::from_secs(30), "something still runs");
        std::thread::sleep(Duration::from_millis(50));
    }
    for (prompt, expected) in expected.iter().enumerate() {
        assert_eq!(
            text(&chat(&body(prompt, false)).send(server.address).ok(), false),
            *expected,
            "afterwards"
        );
    }
    let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
    let (whole, refused) = (get(&counts.whole), get(&counts.refused));
    println!(
        "{seconds} s, {CLIENTS} clients: {whole} whole answers, all equal; {refused} refused with 429; {} vanished; {} wrong",
        get(&counts.vanished),
        get(&counts.wrong)
    );
    assert!(whole > 10 && get(&counts.vanished) > 5 && get(&counts.wrong) > 5, "too little happened");
    match (*middle.lock().unwrap(), memory(server.child.id())) {
        (Some(middle), Some(end)) => {
            println!("memory {} MB in the middle, {} MB at the end", middle >> 20, end >> 20);
            assert!(end < middle + SLACK, "memory grew from {middle} to {end}");
        }
        _ => println!("skipped: the memory of a process is not to be had here"),
    }
    println!("test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
}
