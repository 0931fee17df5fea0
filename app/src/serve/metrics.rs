//! `GET /metrics`: how the server does, in Prometheus' text form.

use super::ready::Server;
use std::fmt::Write;
use std::sync::atomic::Ordering;

const PREFIX: &str = "glimmer";

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {PREFIX}_{name} {help}\n# TYPE {PREFIX}_{name} {kind}");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.head(name, kind, help);
        let _ = writeln!(self.0, "{PREFIX}_{name} {value}");
    }

    fn counter(&mut self, name: &str, help: &str, value: f64) {
        self.one(name, "counter", help, value);
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.one(name, "gauge", help, value);
    }
}

fn ratio(of: f64, by: f64) -> f64 {
    if by > 0.0 { of / by } else { 0.0 }
}

pub fn text(server: &Server) -> String {
    let mut page = Page(String::new());
    let counts = &server.counts;
    page.counter(
        "http_requests_total",
        "Requests of any kind.",
        counts.requests.load(Ordering::Relaxed) as f64,
    );
    page.head("http_responses_total", "counter", "Replies by class of status.");
    for (class, n) in (1..).zip(&counts.statuses) {
        let n = n.load(Ordering::Relaxed);
        let _ = writeln!(page.0, "{PREFIX}_http_responses_total{{class=\"{class}xx\"}} {n}");
    }
    page.gauge("http_connections", "Open connections.", counts.connections.load(Ordering::Relaxed) as f64);
    let Some(ready) = server.if_ready() else {
        page.gauge("ready", "1 when the model is loaded.", 0.0);
        return page.0;
    };
    let m = ready.engine.metrics();
    page.gauge("ready", "1 when the model is loaded.", 1.0);
    page.counter("requests_total", "Answers that were asked for.", m.requests as f64);
    page.counter("requests_finished_total", "Answers that came to their end.", m.finished as f64);
    page.counter("requests_cancelled_total", "Answers whose reader went away.", m.cancelled as f64);
    page.counter("requests_failed_total", "Answers that failed.", m.failed as f64);
    page.gauge("requests_running", "Answers that are being made.", m.running as f64);
    page.gauge("requests_waiting", "Answers that wait.", m.waiting as f64);
    page.counter("prompt_tokens_total", "Tokens of prompts, reused ones included.", m.prompt_tokens as f64);
    page.counter("reused_tokens_total", "Tokens of prompts that the cache held.", m.reused_tokens as f64);
    page.counter("generated_tokens_total", "Tokens of answers.", m.generated_tokens as f64);
    page.counter("prompt_seconds_total", "Time spent on prompts.", m.prompt_seconds);
    page.counter("generation_seconds_total", "Time spent on answers.", m.generation_seconds);
    let run = m.prompt_tokens.saturating_sub(m.reused_tokens) as f64;
    let help = "Tokens of prompts a second of time spent on them.";
    page.gauge("prompt_tokens_per_second", help, ratio(run, m.prompt_seconds));
    let help = "Tokens of answers a second of time spent on them.";
    page.gauge("generated_tokens_per_second", help, ratio(m.generated_tokens as f64, m.generation_seconds));
    page.gauge("cache_hit_ratio", "Share of prompt tokens that the cache held.", {
        ratio(m.reused_tokens as f64, m.prompt_tokens as f64)
    });
    page.gauge("kv_pages_total", "Pages of the cache.", m.pages_total as f64);
    page.gauge("kv_pages_used", "Pages of the cache that hold something.", m.pages_used as f64);
    page.counter("kv_pages_evicted_total", "Pages that were given up for others.", m.evicted as f64);
    let name = "first_token_seconds";
    page.head(name, "histogram", "From the request to the first token.");
    let mut sum = 0;
    for (i, n) in m.first_token.counts.iter().enumerate() {
        sum += n;
        let bound = m.first_token.bounds.get(i).map_or("+Inf".into(), |b| b.to_string());
        let _ = writeln!(page.0, "{PREFIX}_{name}_bucket{{le=\"{bound}\"}} {sum}");
    }
    let _ = writeln!(page.0, "{PREFIX}_{name}_sum {}\n{PREFIX}_{name}_count {sum}", m.first_token.sum);
    page.0
}
