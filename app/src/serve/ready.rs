//! The state of the server: what was asked for on the command line, the model while it loads and when it is there.

use super::error::{Refused, Result};
use super::fields::{Facts, unix_time};
use crate::args::Serve;
use llm::chat::Style;
use llm::constrain::{self, Vocabulary};
use llm::engine::Engine;
use llm::sample::Sampling;
use llm::tools::Form;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A model that answers.
pub struct Ready {
    pub engine: Engine,
    /// None if the file has no chat template.
    pub style: Option<Style>,
    /// How the template writes calls of tools; None if it knows none.
    pub form: Option<Form>,
    pub id: String,
    pub parallel: usize,
    pub facts: Facts,
    vocabulary: OnceLock<std::result::Result<Vocabulary, constrain::Error>>,
}

impl Ready {
    /// `sampling` is what the model recommends.
    pub fn new(
        engine: Engine,
        style: Option<Style>,
        id: String,
        parallel: usize,
        sampling: Sampling,
    ) -> Ready {
        let form = style.as_ref().and_then(|s| Form::of_template(s.source()));
        let facts = Facts { vocab: engine.tokenizer().vocab_size(), sampling };
        Ready { engine, style, form, id, parallel, facts, vocabulary: OnceLock::new() }
    }

    /// Made when it is first needed.
    pub fn vocabulary(&self) -> std::result::Result<&Vocabulary, &constrain::Error> {
        self.vocabulary.get_or_init(|| Vocabulary::new(self.engine.tokenizer())).as_ref()
    }

    /// Whether the template has a switch for reasoning.
    pub fn thinks(&self) -> bool {
        self.style.as_ref().is_some_and(|s| s.source().contains("enable_thinking"))
    }
}

pub struct Server {
    pub id: String,
    pub key: Option<String>,
    pub cors: Vec<String>,
    pub max_body: usize,
    pub patience: Duration,
    pub counts: Counts,
    pub started: u64,
    loaded: AtomicU64,
    to_load: AtomicU64,
    ready: OnceLock<Arc<Ready>>,
}

/// Of requests, since the start.
#[derive(Default)]
pub struct Counts {
    pub requests: AtomicU64,
    /// By the first digit of the status, from 1.
    pub statuses: [AtomicU64; 5],
    pub connections: AtomicU64,
}

impl Server {
    pub fn new(args: &Serve, id: String) -> Server {
        Server {
            id,
            key: args.api_key.clone(),
            cors: args.cors.clone(),
            max_body: args.max_body,
            patience: Duration::from_secs(args.timeout),
            counts: Counts::default(),
            started: unix_time(),
            loaded: AtomicU64::new(0),
            to_load: AtomicU64::new(0),
            ready: OnceLock::new(),
        }
    }

    pub fn loaded(&self, done: u64, of: u64) {
        self.loaded.store(done, Ordering::Relaxed);
        self.to_load.store(of, Ordering::Relaxed);
    }

    pub fn set_ready(&self, ready: Ready) {
        drop(self.ready.set(Arc::new(ready)));
    }

    pub fn if_ready(&self) -> Option<&Arc<Ready>> {
        self.ready.get()
    }

    pub fn ready(&self) -> Result<Arc<Ready>> {
        self.ready.get().cloned().ok_or_else(|| Refused::loading(self.progress()))
    }

    /// From 0 to 1.
    pub fn progress(&self) -> f32 {
        let (done, of) = (self.loaded.load(Ordering::Relaxed), self.to_load.load(Ordering::Relaxed));
        if of == 0 { 0.0 } else { (done as f64 / of as f64) as f32 }
    }

    /// Takes as long for a wrong key as for the right one.
    pub fn allows(&self, given: Option<&[u8]>) -> bool {
        let Some(key) = &self.key else { return true };
        let given = given.unwrap_or(b"");
        let key = key.as_bytes();
        let mut different = u8::from(given.len() != key.len());
        for (i, byte) in given.iter().enumerate() {
            different |= byte ^ key[i % key.len()];
        }
        std::hint::black_box(different) == 0
    }
}
