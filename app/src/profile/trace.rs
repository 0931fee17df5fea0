//! A report as a trace: Chrome's trace event format, which Perfetto reads.
//!
//! Launches follow each other on one track, with the gaps between them where these are known, under the part of the step
//! that they belong to.

use super::report::Report;
use serde_json::{Value, json};

pub fn of(r: &Report) -> Value {
    let name = |tid: u32, name: &str| json!({"name": "thread_name", "ph": "M", "pid": 1, "tid": tid, "args": {"name": name}});
    let mut events = vec![
        json!({"name": "process_name", "ph": "M", "pid": 1, "tid": 1,
            "args": {"name": format!("{} on {}", r.model, r.device)}}),
        name(1, "step"),
        name(2, "kernels"),
    ];
    let slice = |tid: u32, name: &str, category: &str, ts: f64, dur: f64, args: Value| json!({"name": name, "cat": category, "ph": "X", "ts": ts, "dur": dur, "pid": 1, "tid": tid, "args": args});
    let mut at = 0.0;
    for same in r.timeline.chunk_by(|a, b| a.place == b.place) {
        let start = at;
        for e in same {
            let k = &r.kernels[e.kernel - 1];
            at += e.gap_us;
            let args = json!({"kernel": k.name, "number": k.id, "shape": k.shape, "bytes": k.bytes,
                "GB/s": k.bytes / e.us.max(1e-6) / 1e3, "schedule": k.schedule, "source": k.source.join(", ")});
            events.push(slice(2, &k.what, k.component, at, e.us, args));
            at += e.us;
        }
        let place = same[0].place.as_str();
        events.push(slice(1, place, "step", start, at - start, json!({"launches": same.len()})));
    }
    json!({"traceEvents": events, "displayTimeUnit": "ns"})
}
