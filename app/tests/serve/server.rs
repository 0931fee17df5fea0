//! A server in a process of its own, with the built-in model on a free port.

use crate::client::{Reply, Request};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A server of its own, ended with the test.
pub struct Server {
    pub child: Child,
    pub address: SocketAddr,
}

impl Server {
    pub fn start(flags: &[&str]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_glimmer"));
        command.stdin(Stdio::null());
        Server::launch(command, flags)
    }

    pub fn launch(mut command: Command, flags: &[&str]) -> Server {
        let mut child = command
            .args(["serve", "--port", "0", "--threads", "2"])
            .args(flags)
            .env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        let address = first.rsplit("http://").next().unwrap().parse().unwrap_or_else(|_| panic!("{first}"));
        std::thread::spawn(move || lines.for_each(drop));
        Server { child, address }
    }

    pub fn ready(flags: &[&str]) -> Server {
        let server = Server::start(flags);
        server.wait_until_ready();
        server
    }

    pub fn wait_until_ready(&self) {
        let began = Instant::now();
        while self.get("/health").status != 200 {
            assert!(began.elapsed() < Duration::from_secs(120), "never ready");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn get(&self, path: &str) -> Reply {
        Request::new("GET", path).send(self.address)
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        Request::new("POST", path).body(body.to_string()).send(self.address)
    }

    /// A gauge or counter of `/metrics`.
    pub fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").text();
        let line = page.lines().find(|l| l.split(' ').next() == Some(name));
        line.and_then(|l| l.rsplit(' ').next())
            .and_then(|v| v.parse().ok())
            .unwrap_or_else(|| panic!("{name}"))
    }

    /// Waits until nothing runs or waits.
    pub fn settle(&self) {
        let began = Instant::now();
        while self.metric("glimmer_requests_running") + self.metric("glimmer_requests_waiting") > 0.0 {
            assert!(began.elapsed() < Duration::from_secs(20), "something still runs");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    pub fn ended(&mut self, within: Duration) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(began.elapsed() < within, "the server still runs");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
