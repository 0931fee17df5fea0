//! The model that the command line names.

use crate::args::ModelArgs;
use crate::{device, dump, names};
use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use llm::gguf::Gguf;
use llm::model::{Model, Options};
use llm::synth::{self, Changes};
use runtime::device::Device;
use runtime::schedules::Schedules;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The model inside the program; see `app/models/README.md`.
static BUILT_IN: &[u8] = include_bytes!("../models/storyteller-Q4_K_M.gguf");

/// Where a model comes from.
pub enum Origin {
    BuiltIn,
    /// NAME:QUANT.
    Synth(String),
    File(PathBuf),
}

/// A path, a name of `names`, `synth:NAME:QUANT`, or nothing for the built-in model.
pub fn origin(model: Option<&str>) -> Result<Origin> {
    let Some(model) = model else { return Ok(Origin::BuiltIn) };
    if let Some(spec) = model.strip_prefix("synth:") {
        return Ok(Origin::Synth(spec.into()));
    }
    let path = Path::new(model);
    if let Some(path) = names::local_path(model).filter(|_| !path.exists()) {
        return Ok(Origin::File(path?));
    }
    let named_like_a_file = path.components().count() > 1 || path.extension().is_some_and(|e| e == "gguf");
    if path.exists() || named_like_a_file {
        return Ok(Origin::File(path.into()));
    }
    bail!(
        "{model}: no such file; a model is the path of a GGUF file, a name of `glimmer models`, synth:NAME:QUANT with one of {} and {}, or nothing \
         for the built-in one",
        synth::names().join(", "),
        synth::quants().join(", ")
    )
}

impl Origin {
    pub fn open(&self) -> Result<Gguf> {
        Ok(match self {
            Origin::BuiltIn => Gguf::from_static("storyteller (built in)", BUILT_IN)?,
            Origin::Synth(spec) => synth::open(spec, Changes::default())?,
            Origin::File(path) => Gguf::open(path)?,
        })
    }
}

pub fn open(model: Option<&str>) -> Result<Gguf> {
    origin(model)?.open()
}

/// Loads the model that the flags name, with so many positions.
pub fn load(args: &ModelArgs, context: usize, drafts: bool) -> Result<Model> {
    on_device(args, open(args.model.as_deref())?, Some(context), drafts)
}

/// Puts a model on the device that the flags name, and shows its kernels if asked to.
pub fn on_device(args: &ModelArgs, file: Gguf, context: Option<usize>, drafts: bool) -> Result<Model> {
    on_device_told(args, file, context, drafts, &mut |_, _| {})
}

/// As [`on_device`]; `told` hears how many of how many bytes are loaded.
pub fn on_device_told(
    args: &ModelArgs,
    file: Gguf,
    context: Option<usize>,
    drafts: bool,
    told: &mut dyn FnMut(u64, u64),
) -> Result<Model> {
    let activations = args.activations.map(Into::into);
    let options = Options { context, activations, drafts, schedules: schedules() };
    let mut model = load_told(Arc::from(device::open(&args.device)?), file, options, told)?;
    let (context, trained) = (model.context(), model.trained());
    if context > trained {
        eprintln!(
            "glimmer: {} was trained for {trained} tokens; what comes after them of {context} may be nonsense",
            model.file().name()
        );
    }
    if !args.dump.is_empty() {
        dump::model(&mut model, &args.dump)?;
    }
    Ok(model)
}

/// What was tuned on this machine and what ships with the program.
pub fn schedules() -> Arc<Schedules> {
    let warn = |what: &str| eprintln!("glimmer: {what}");
    Arc::new(match names::cache_dir() {
        Ok(dir) => Schedules::open(&dir, warn),
        Err(_) => Schedules::default(),
    })
}

/// Puts a model on a device, with a bar on a terminal.
pub fn load_on(device: Arc<dyn Device>, file: Gguf, options: Options) -> Result<Model> {
    load_told(device, file, options, &mut |_, _| {})
}

fn load_told(
    device: Arc<dyn Device>,
    file: Gguf,
    options: Options,
    told: &mut dyn FnMut(u64, u64),
) -> Result<Model> {
    let bar = ProgressBar::new(0).with_message(format!("loading {}", file.name()));
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {decimal_bytes}/{decimal_total_bytes}")
    {
        bar.set_style(style);
    }
    let model = Model::load(device, file, options, &mut |done, of| {
        told(done, of);
        bar.set_length(of);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    Ok(model?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_a_model() {
        let story = open(None).unwrap();
        assert_eq!((story.architecture().unwrap(), story.name()), ("deepseek2", "storyteller (built in)"));
        assert_eq!(open(Some("synth:youtu-llm-2b:q8_0")).unwrap().name(), "synth:youtu-llm-2b:q8_0");
        let error = |m| open(Some(m)).unwrap_err().to_string();
        assert!(error("synth:x:q8_0").contains("no synthetic model is called \"x\""));
        assert!(error("no/model").starts_with("no/model: "));
        assert!(error("model.gguf").starts_with("model.gguf: "));
        assert!(
            error("glm").contains("a model is the path of a GGUF file, a name of `glimmer models`, synth:NAME:QUANT with one of glm-4.7")
        );
    }
}
