//! Limits and ends: sizes, queues, slow clients, clients that vanish, signals, ports that are taken.

use crate::Server;
use crate::client::{Reply, Request};
use serde_json::{Map, Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

/// A request for an answer that does not end before 900 tokens: what would end it is banned.
fn long(server: &Server, stream: bool) -> Request {
    let ends = "<|endoftext|><|user|><|observation|>";
    let ids = server.post("/tokenize", &json!({"content": ends})).ok().json();
    let banned: Map<String, Value> =
        ids["tokens"].as_array().unwrap().iter().map(|id| (id.to_string(), json!(-100))).collect();
    assert_eq!(banned.len(), 3);
    let body =
        json!({"prompt": "Once upon a time", "max_tokens": 900, "logit_bias": banned, "stream": stream});
    Request::new("POST", "/v1/completions").body(body.to_string())
}

#[test]
fn bodies_have_a_limit() {
    let server = Server::ready(&["--max-body", "1000"]);
    let body = json!({"prompt": "x".repeat(2000)}).to_string();
    let reply = Request::new("POST", "/v1/completions").body(body).send(server.address);
    assert_eq!(
        (reply.status, reply.json()["error"]["code"].as_str().map(String::from)),
        (413, Some("body_too_large".into()))
    );
    // Without a length the limit holds too.
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream
        .write_all(
            b"POST /tokenize HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n",
        )
        .unwrap();
    for _ in 0..30 {
        let _ = stream.write_all(format!("64\r\n{}\r\n", "y".repeat(100)).as_bytes());
    }
    assert_eq!(Reply::read(stream).unwrap().status, 413);
}

#[test]
fn a_full_queue_is_refused() {
    let server = Server::ready(&["--parallel", "1", "--queue", "1"]);
    let request = long(&server, true);
    let open: Vec<_> = (0..4).map(|_| request.open(server.address).unwrap()).collect();
    let began = Instant::now();
    let refused = loop {
        // Whoever gets a place gives it up by going away.
        let stream = Request::new("POST", "/v1/completions")
            .body(json!({"prompt": "a", "max_tokens": 1}).to_string())
            .open(server.address)
            .unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        if let Ok(reply) = Reply::read(stream) {
            break reply;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "never full");
    };
    assert_eq!(
        (refused.status, refused.json()["error"]["code"].as_str().map(String::from)),
        (429, Some("queue_full".into()))
    );
    assert!(refused.headers["retry-after"].parse::<u64>().unwrap() >= 1);
    let messages = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1});
    let reply = server.post("/v1/messages", &messages);
    assert_eq!((reply.status, &reply.json()["error"]["type"]), (429, &json!("rate_limit_error")));
    drop(open);
    server.settle();
    assert_eq!(server.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1})).status, 200);
}

#[test]
fn clients_that_vanish_free_their_place() {
    let server = Server::ready(&["--parallel", "2", "--queue", "64"]);
    let (streamed, whole) = (long(&server, true), long(&server, false));
    let mut streams = vec![];
    for _ in 0..8 {
        let mut stream = streamed.open(server.address).unwrap();
        let mut first = [0; 64];
        if streams.is_empty() {
            stream.read_exact(&mut first).unwrap();
        }
        streams.push(stream);
    }
    // Some of them wait for a whole answer.
    for _ in 0..4 {
        streams.push(whole.open(server.address).unwrap());
    }
    drop(streams);
    let began = Instant::now();
    server.settle();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(server.metric("glimmer_requests_cancelled_total") >= 1.0);
}

#[test]
fn slow_senders_are_cut_off() {
    let server = Server::ready(&["--timeout", "1"]);
    for begin in
        ["POST /tokenize HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{\"con", "GET /health HTT", ""]
    {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(begin.as_bytes()).unwrap();
        let began = Instant::now();
        let mut rest = vec![];
        let _ = stream.read_to_end(&mut rest);
        assert!(began.elapsed() < Duration::from_secs(15), "{begin:?}");
        if begin.contains("content-length") {
            assert!(rest.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&rest));
        }
    }
}

#[test]
fn the_socket_is_open_while_the_model_loads() {
    let server = Server::start(&[]);
    let began = Instant::now();
    loop {
        let reply = server.get("/health");
        let value = reply.json();
        if reply.status == 200 {
            assert_eq!(value["status"], "ready");
            break;
        }
        assert_eq!((reply.status, value["status"].as_str()), (503, Some("loading")), "{value}");
        assert!((0.0..=1.0).contains(&value["progress"].as_f64().unwrap()));
        let reply = server.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1}));
        assert!(reply.status == 200 || reply.headers.contains_key("retry-after"), "{}", reply.text());
        assert!(began.elapsed() < Duration::from_secs(60), "never ready");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn signals_end_it_cleanly() {
    for (signal, busy) in [("-INT", false), ("-TERM", true)] {
        let mut server = Server::ready(&[]);
        let stream = busy.then(|| {
            let mut stream = long(&server, true).open(server.address).unwrap();
            stream.read_exact(&mut [0; 64]).unwrap();
            stream
        });
        server.signal(signal);
        let status = server.ended(Duration::from_secs(12));
        assert_eq!(status.code(), Some(0), "{signal}");
        drop(stream);
    }
    let mut server = Server::ready(&[]);
    let mut stream = long(&server, true).open(server.address).unwrap();
    stream.read_exact(&mut [0; 64]).unwrap();
    server.signal("-INT");
    std::thread::sleep(Duration::from_millis(200));
    server.signal("-INT");
    let code = server.ended(Duration::from_secs(2)).code();
    assert!(code == Some(130) || code == Some(0), "{code:?}");
}

#[test]
fn a_taken_port_is_said() {
    let server = Server::ready(&[]);
    let port = server.address.port().to_string();
    let glimmer = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_glimmer")).arg("serve").args(args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text) = glimmer(&["--port", &port]);
    assert_eq!(code, Some(1));
    assert!(text.contains(&format!("127.0.0.1:{port} is taken")) && text.contains("--port"), "{text}");
    let (code, text) = glimmer(&["--host", "203.0.113.7", "--port", "0"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("--host 203.0.113.7"), "{text}");
    let (code, text) = glimmer(&["no/such.gguf", "--port", "0"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("no/such.gguf"), "{text}");
}
