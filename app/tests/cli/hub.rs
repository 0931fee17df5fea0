//! A small Hugging Face on this machine: the list of one repository's files, and the files behind a redirection.

use sha2::{Digest, Sha256};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

#[derive(Clone, Default)]
pub struct Hub {
    files: Vec<(String, Vec<u8>)>,
    /// What is said about the checksum of every file, if not the truth.
    pub sum: Option<String>,
    /// Bytes of a file that are sent before the connection is dropped, for each connection in turn.
    pub drops: Arc<Mutex<Vec<usize>>>,
    pub ignores_ranges: bool,
    /// Where the requested files began.
    starts: Arc<Mutex<Vec<usize>>>,
}

impl Hub {
    pub fn new(files: &[(&str, &[u8])]) -> Hub {
        Hub { files: files.iter().map(|(p, b)| (p.to_string(), b.to_vec())).collect(), ..Hub::default() }
    }

    pub fn starts(&self) -> Vec<usize> {
        self.starts.lock().unwrap().clone()
    }

    /// Serves until the test ends; gives the address.
    pub fn serve(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let hub = self.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // The client may go at any time.
                let _ = hub.answer(stream);
            }
        });
        address
    }

    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let first = lines.next().unwrap_or(Ok(String::new()))?;
        let path = first.split(' ').nth(1).unwrap_or("").to_string();
        let mut from = None;
        for line in lines {
            let line = line?.to_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(range) = line.strip_prefix("range: bytes=") {
                from = range.trim_end_matches('-').parse::<usize>().ok();
            }
        }
        if path == "/api/models/owner/repo/tree/main?recursive=true" {
            return reply(&mut stream, "200 OK", "", self.list().as_bytes(), usize::MAX);
        }
        if let Some(file) = path.strip_prefix("/owner/repo/resolve/main/") {
            return reply(&mut stream, "302 Found", &format!("location: /cdn/{file}\r\n"), b"", 0);
        }
        let file = path.strip_prefix("/cdn/").and_then(|f| self.files.iter().find(|(p, _)| p == f));
        let Some((_, bytes)) = file else {
            return reply(&mut stream, "404 Not Found", "", b"no such thing", usize::MAX);
        };
        let from = from.filter(|_| !self.ignores_ranges);
        self.starts.lock().unwrap().push(from.unwrap_or(0));
        let mut drops = self.drops.lock().unwrap();
        let most = if drops.is_empty() { usize::MAX } else { drops.remove(0) };
        drop(drops);
        match from {
            Some(n) if n < bytes.len() => {
                let range = format!("content-range: bytes {n}-{}/{}\r\n", bytes.len() - 1, bytes.len());
                reply(&mut stream, "206 Partial Content", &range, &bytes[n..], most)
            }
            Some(_) => reply(&mut stream, "416 Range Not Satisfiable", "", b"", 0),
            None => reply(&mut stream, "200 OK", "", bytes, most),
        }
    }

    fn list(&self) -> String {
        let entries = self.files.iter().map(|(path, bytes)| {
            let sum = self.sum.clone().unwrap_or_else(|| sha256(bytes));
            let size = bytes.len();
            serde_json::json!({"type": "file", "path": path, "size": size, "lfs": {"oid": sum, "size": size}})
        });
        let readme = serde_json::json!({"type": "file", "path": "README.md", "size": 3});
        serde_json::Value::Array(entries.chain([readme]).collect()).to_string()
    }
}

fn reply(
    stream: &mut TcpStream,
    status: &str,
    headers: &str,
    body: &[u8],
    most: usize,
) -> std::io::Result<()> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(&body[..length.min(most)])
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}
