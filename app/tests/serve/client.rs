//! A small HTTP client that can be rude: requests as bytes, replies read as far as wanted.

use serde_json::Value;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub struct Request {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Option<Vec<u8>>,
}

impl Request {
    pub fn new(method: &str, path: &str) -> Request {
        Request { method: method.into(), path: path.into(), headers: vec![], body: None }
    }

    pub fn header(mut self, name: &str, value: &str) -> Request {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Request {
        self.body = Some(body.into());
        self
    }

    pub fn send(&self, to: SocketAddr) -> Reply {
        self.try_send(to).unwrap_or_else(|e| panic!("{} {}: {e}", self.method, self.path))
    }

    pub fn try_send(&self, to: SocketAddr) -> std::io::Result<Reply> {
        Reply::read(self.open(to)?)
    }

    /// Sends the request and leaves the reply to the caller.
    pub fn open(&self, to: SocketAddr) -> std::io::Result<TcpStream> {
        let mut stream = TcpStream::connect(to)?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        let mut head =
            format!("{} {} HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\n", self.method, self.path);
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        if let Some(body) = &self.body {
            head += &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
        }
        stream.write_all((head + "\r\n").as_bytes())?;
        // A server that refuses a body need not read it.
        let _ = stream.write_all(self.body.as_deref().unwrap_or_default());
        Ok(stream)
    }
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
}

fn broken(text: &str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, text.to_string())
}

impl Reply {
    pub fn read(stream: TcpStream) -> std::io::Result<Reply> {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|s| s.parse().ok()).ok_or_else(|| broken(&line))?;
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.insert(name.to_lowercase(), value.to_string());
        }
        let mut body = vec![];
        if headers.get("transfer-encoding").is_some_and(|t| t == "chunked") {
            loop {
                let mut size = String::new();
                reader.read_line(&mut size)?;
                let size =
                    usize::from_str_radix(size.trim(), 16).map_err(|_| broken("a chunk without size"))?;
                let mut chunk = vec![0; size + 2];
                reader.read_exact(&mut chunk)?;
                if size == 0 {
                    break;
                }
                body.extend(&chunk[..size]);
            }
        } else {
            reader.read_to_end(&mut body)?;
        }
        Ok(Reply { status, headers, body })
    }

    pub fn ok(self) -> Reply {
        assert_eq!(self.status, 200, "{}", self.text());
        self
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// The data of server-sent events, with their names where they have some.
    pub fn events(&self) -> Vec<(String, Value)> {
        let text = self.text();
        let mut out = vec![];
        for event in text.split("\n\n").filter(|e| !e.is_empty()) {
            let field = |name: &str| event.lines().find_map(|l| l.strip_prefix(name)).unwrap_or("").trim();
            let data = field("data:");
            let value = if data == "[DONE]" { "[DONE]".into() } else { serde_json::from_str(data).unwrap() };
            out.push((field("event:").to_string(), value));
        }
        out
    }
}
