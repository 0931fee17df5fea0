//! Rows and how they are written: a table as llama-bench prints it, CSV, JSON, JSON lines.
//!
//! Speeds are medians; what stands behind ± is the standard deviation of the runs.

use crate::args::BenchFormat;
use anyhow::Result;
use runtime::machine;
use serde::Serialize;
use serde_json::json;
use std::fs;

/// Tokens a second of every run.
#[derive(Serialize, Clone)]
pub struct Speed {
    pub median: f64,
    pub deviation: f64,
    pub runs: Vec<f64>,
}

impl Speed {
    /// None without a run.
    pub fn of(runs: &[f64]) -> Option<Speed> {
        let median = median(runs)?;
        let n = runs.len() as f64;
        let mean = runs.iter().sum::<f64>() / n;
        let squares: f64 = runs.iter().map(|r| (r - mean).powi(2)).sum();
        let deviation = if runs.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 };
        Some(Speed { median, deviation, runs: runs.to_vec() })
    }
}

/// Of an even number the mean of the middle two.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut v = values.to_vec();
    v.sort_by(f64::total_cmp);
    let half = v.len() / 2;
    match v.len() {
        0 => None,
        n if n % 2 == 0 => Some((v[half - 1] + v[half]) / 2.0),
        _ => Some(v[half]),
    }
}

#[derive(Serialize, Clone)]
pub struct Row {
    pub model: String,
    pub architecture: String,
    pub size_bytes: u64,
    pub parameters: i64,
    pub backend: String,
    pub threads: Option<usize>,
    pub test: String,
    pub tokens_per_second: Speed,
    /// Weights and cache that one token reads, for tests that decode; the cache as it is in the middle of a run.
    pub bytes_per_token: Option<u64>,
    pub gb_per_second: Option<f64>,
    /// GB/s that the device read between the runs, median.
    pub bandwidth: Option<f64>,
    pub share_of_bandwidth: Option<f64>,
    /// From a prompt to its logits, median.
    pub first_token_seconds: Option<f64>,
    /// Median of all loads.
    pub load_seconds: f64,
    pub peers: Vec<PeerRow>,
    /// Against the fastest peer.
    pub ratio: Option<f64>,
}

#[derive(Serialize, Clone)]
pub struct PeerRow {
    pub program: String,
    pub build: String,
    pub tokens_per_second: Speed,
}

impl Row {
    /// The fastest.
    fn peer(&self) -> Option<&PeerRow> {
        let median = |p: &&PeerRow| p.tokens_per_second.median;
        self.peers.iter().max_by(|a, b| median(a).total_cmp(&median(b)))
    }

    pub fn with_ratio(mut self) -> Row {
        self.ratio = self.peer().map(|p| self.tokens_per_second.median / p.tokens_per_second.median);
        self
    }
}

pub fn show(rows: &[Row], format: BenchFormat) -> Result<String> {
    Ok(match format {
        BenchFormat::Md => markdown(rows),
        BenchFormat::Csv => csv(rows),
        BenchFormat::Json => {
            let command: Vec<String> = std::env::args().collect();
            let version = env!("CARGO_PKG_VERSION");
            let document =
                json!({"glimmer": version, "command": command, "machine": this_machine(), "rows": rows});
            serde_json::to_string_pretty(&document)? + "\n"
        }
        BenchFormat::Jsonl => {
            let lines = rows.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
            lines.into_iter().map(|line| line + "\n").collect()
        }
    })
}

/// A column: what stands above it, whether its texts begin at the left, and what a row has in it.
type Column = (&'static str, bool, fn(&Row) -> String);

const COLUMNS: [Column; 12] = [
    ("model", true, |r| r.model.clone()),
    ("size", false, |r| size(r.size_bytes)),
    ("params", false, |r| count(r.parameters)),
    ("backend", true, |r| r.backend.clone()),
    ("threads", false, |r| r.threads.map_or("-".into(), |t| t.to_string())),
    ("test", false, |r| r.test.clone()),
    ("t/s", false, |r| speed(&r.tokens_per_second)),
    ("MB/token", false, |r| number(r.bytes_per_token.map(|b| b as f64 / 1e6), 1)),
    ("GB/s", false, |r| number(r.gb_per_second, 2)),
    ("of bandwidth", false, |r| match (r.share_of_bandwidth, r.bandwidth) {
        (Some(share), Some(of)) => format!("{:.0}% of {of:.1}", 100.0 * share),
        _ => "-".into(),
    }),
    ("first token s", false, |r| number(r.first_token_seconds, 3)),
    ("load s", false, |r| number(Some(r.load_seconds), 2)),
];

/// With a peer.
const BESIDE: [Column; 2] = [
    ("llama.cpp t/s", false, |r| r.peer().map_or("-".into(), |p| speed(&p.tokens_per_second))),
    ("ratio", false, |r| number(r.ratio, 2)),
];

fn markdown(rows: &[Row]) -> String {
    let beside = if rows.iter().any(|r| !r.peers.is_empty()) { &BESIDE[..] } else { &[] };
    let columns: Vec<&Column> = COLUMNS.iter().chain(beside).collect();
    let cells: Vec<Vec<String>> = rows.iter().map(|r| columns.iter().map(|c| (c.2)(r)).collect()).collect();
    let width = |i: usize| {
        let longest = cells.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
        longest.max(columns[i].0.chars().count())
    };
    let line = |texts: Vec<String>| format!("| {} |\n", texts.join(" | "));
    let padded = |i: usize, text: &str| match columns[i].1 {
        true => format!("{text:<w$}", w = width(i)),
        false => format!("{text:>w$}", w = width(i)),
    };
    let rule = |i: usize| match columns[i].1 {
        true => "-".repeat(width(i)),
        false => "-".repeat(width(i) - 1) + ":",
    };
    let mut out = line(columns.iter().enumerate().map(|(i, c)| padded(i, c.0)).collect());
    out += &line((0..columns.len()).map(rule).collect());
    for row in &cells {
        out += &line(row.iter().enumerate().map(|(i, text)| padded(i, text)).collect());
    }
    out
}

fn csv(rows: &[Row]) -> String {
    let optional = |v: Option<f64>| v.map_or(String::new(), |v| v.to_string());
    let mut out = "model,architecture,size_bytes,parameters,backend,threads,test,runs,tokens_per_second,\
                   tokens_per_second_deviation,bytes_per_token,gb_per_second,bandwidth,share_of_bandwidth,\
                   first_token_seconds,load_seconds,peer,peer_tokens_per_second,peer_tokens_per_second_deviation,\
                   ratio\n"
        .to_string();
    for r in rows {
        let (own, peer) = (&r.tokens_per_second, r.peer());
        let cells = [
            quoted(&r.model),
            quoted(&r.architecture),
            r.size_bytes.to_string(),
            r.parameters.to_string(),
            quoted(&r.backend),
            r.threads.map_or(String::new(), |t| t.to_string()),
            quoted(&r.test),
            own.runs.len().to_string(),
            own.median.to_string(),
            own.deviation.to_string(),
            r.bytes_per_token.map_or(String::new(), |b| b.to_string()),
            optional(r.gb_per_second),
            optional(r.bandwidth),
            optional(r.share_of_bandwidth),
            optional(r.first_token_seconds),
            r.load_seconds.to_string(),
            peer.map_or(String::new(), |p| quoted(&p.program)),
            optional(peer.map(|p| p.tokens_per_second.median)),
            optional(peer.map(|p| p.tokens_per_second.deviation)),
            optional(r.ratio),
        ];
        out += &(cells.join(",") + "\n");
    }
    out
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.into() }
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".into(), |v| format!("{v:.digits$}"))
}

fn speed(s: &Speed) -> String {
    format!("{:.2} ± {:.2}", s.median, s.deviation)
}

/// Binary, as llama-bench has it.
fn size(bytes: u64) -> String {
    match bytes {
        0x4000_0000.. => format!("{:.2} GiB", bytes as f64 / (1u64 << 30) as f64),
        _ => format!("{:.2} MiB", bytes as f64 / (1u64 << 20) as f64),
    }
}

fn count(n: i64) -> String {
    match n {
        1_000_000_000.. => format!("{:.2} B", n as f64 / 1e9),
        _ => format!("{:.2} M", n as f64 / 1e6),
    }
}

/// As far as the system says.
fn this_machine() -> serde_json::Value {
    let field = |file: &str, name: &str| {
        let text = fs::read_to_string(file).ok()?;
        let line = text.lines().find(|l| l.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    json!({
        "processor": field("/proc/cpuinfo", "model name"),
        "cores": machine::cores().len(),
        "memory": field("/proc/meminfo", "MemTotal"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speed_of(runs: &[f64]) -> Speed {
        Speed::of(runs).unwrap()
    }

    fn rows() -> Vec<Row> {
        let decode = Row {
            model: "glm, \"flash\"".into(),
            architecture: "deepseek2".into(),
            size_bytes: 17_179_869_184,
            parameters: 29_943_390_976,
            backend: "x86-avx512".into(),
            threads: Some(2),
            test: "tg32 @ d4096".into(),
            tokens_per_second: speed_of(&[9.0, 8.0, 10.0]),
            bytes_per_token: Some(2_120_000_000),
            gb_per_second: Some(19.08),
            bandwidth: Some(22.0),
            share_of_bandwidth: Some(19.08 / 22.0),
            first_token_seconds: None,
            load_seconds: 17.981,
            peers: vec![
                PeerRow { program: "a".into(), build: "x CPU".into(), tokens_per_second: speed_of(&[4.0]) },
                PeerRow {
                    program: "b".into(),
                    build: "x CPU".into(),
                    tokens_per_second: speed_of(&[5.0, 4.0, 4.5]),
                },
            ],
            ratio: None,
        };
        let prompt = Row {
            test: "pp512".into(),
            bytes_per_token: None,
            gb_per_second: None,
            share_of_bandwidth: None,
            first_token_seconds: Some(0.25),
            peers: vec![],
            ..decode.clone()
        };
        vec![decode.with_ratio(), prompt.with_ratio()]
    }

    #[test]
    fn medians_and_deviations() {
        assert_eq!(
            (median(&[]), median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0])),
            (None, Some(2.0), Some(2.5))
        );
        let s = speed_of(&[8.0, 10.0, 9.0]);
        assert_eq!((s.median, s.deviation, s.runs), (9.0, 1.0, vec![8.0, 10.0, 9.0]));
        assert_eq!(speed_of(&[7.0]).deviation, 0.0);
        assert!(Speed::of(&[]).is_none());
    }

    #[test]
    fn a_table_for_people() {
        let expected = "\
| model        |      size |  params | backend    | threads |         test |         t/s | MB/token |  GB/s | of bandwidth | first token s | load s | llama.cpp t/s | ratio |
| ------------ | --------: | ------: | ---------- | ------: | -----------: | ----------: | -------: | ----: | -----------: | ------------: | -----: | ------------: | ----: |
| glm, \"flash\" | 16.00 GiB | 29.94 B | x86-avx512 |       2 | tg32 @ d4096 | 9.00 ± 1.00 |   2120.0 | 19.08 |  87% of 22.0 |             - |  17.98 |   4.50 ± 0.50 |  2.00 |
| glm, \"flash\" | 16.00 GiB | 29.94 B | x86-avx512 |       2 |        pp512 | 9.00 ± 1.00 |        - |     - |            - |         0.250 |  17.98 |             - |     - |
";
        assert_eq!(show(&rows(), BenchFormat::Md).unwrap(), expected);
        assert!(!show(&rows()[1..], BenchFormat::Md).unwrap().contains("llama.cpp"));
    }

    #[test]
    fn the_best_peer_counts() {
        let rows = rows();
        assert_eq!(rows[0].peer().unwrap().program, "b");
        assert_eq!((rows[0].ratio, rows[1].ratio), (Some(2.0), None));
    }

    #[test]
    fn formats_for_programs() {
        let csv = show(&rows(), BenchFormat::Csv).unwrap();
        let lines: Vec<&str> = csv.lines().collect();
        assert!(lines[1].starts_with("\"glm, \"\"flash\"\"\",deepseek2,17179869184,29943390976,x86-avx512,2,tg32 @ d4096,3,9,1,2120000000,19.08,22,"), "{csv}");
        assert!(lines[1].ends_with(",17.981,b,4.5,0.5,2") && lines[2].ends_with(",0.25,17.981,,,,"), "{csv}");
        assert!(lines[0].split(',').count() == 20 && lines[2].split(',').count() == 21, "a comma in a name");

        let jsonl = show(&rows(), BenchFormat::Jsonl).unwrap();
        let of_lines: Vec<serde_json::Value> =
            jsonl.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let json: serde_json::Value =
            serde_json::from_str(&show(&rows(), BenchFormat::Json).unwrap()).unwrap();
        assert_eq!(json["rows"], serde_json::Value::Array(of_lines));
        assert_eq!(json["rows"][0]["peers"][1]["tokens_per_second"]["runs"], json!([5.0, 4.0, 4.5]));
        assert_eq!(json["rows"][1]["bytes_per_token"], json!(null));
        assert!(json["machine"]["cores"].as_u64().unwrap() > 0);
    }
}
