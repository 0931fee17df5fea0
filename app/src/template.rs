//! `glimmer template`: the exact prompt that a chat template makes of messages, and nothing more.

use crate::args::Template;
use crate::model;
use anyhow::{Context, Result, bail};
use llm::tokenizer::Tokenizer;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{Read, Write};

pub fn run(args: &Template) -> Result<()> {
    let name = &args.messages;
    let text = match name.as_str() {
        "-" => std::io::read_to_string(std::io::stdin()),
        path => std::fs::read_to_string(path),
    };
    let text = text.with_context(|| name.clone())?;
    let mut file: Map<String, Value> = serde_json::from_str(&text)
        .with_context(|| format!("{name}: expected a JSON object with `messages`"))?;
    let Some(messages @ Value::Array(_)) = file.remove("messages") else {
        bail!("{name}: expected an object whose `messages` is a list");
    };
    let mut arguments = Map::new();
    let source = match source(&args.template)? {
        Some(source) => source,
        None => of_model(&args.template, &mut arguments)?,
    };
    for token in ["bos_token", "eos_token"] {
        arguments.extend(file.remove(token).map(|text| (token.to_string(), text)));
    }
    match file.remove("arguments") {
        Some(Value::Object(given)) => arguments.extend(given),
        Some(_) => bail!("{name}: `arguments` must be an object"),
        None => {}
    }
    let template = llm::template::Template::new(&source).with_context(|| args.template.clone())?;
    let prompt = template.render(&messages, &arguments).with_context(|| args.template.clone())?;
    std::io::stdout().write_all(prompt.as_bytes())?;
    Ok(())
}

/// The template in a file that is no model.
fn source(path: &str) -> Result<Option<String>> {
    let Ok(mut file) = File::open(path) else { return Ok(None) };
    let mut magic = Vec::new();
    (&mut file).take(4).read_to_end(&mut magic).with_context(|| path.to_string())?;
    if magic == b"GGUF" || path.ends_with(".gguf") {
        return Ok(None);
    }
    let source = std::fs::read_to_string(path).with_context(|| path.to_string())?;
    Ok(Some(source))
}

/// The template of a model; its tokens' texts become arguments.
fn of_model(name: &str, arguments: &mut Map<String, Value>) -> Result<String> {
    let file = model::open(Some(name))?;
    let Some(source) = file.opt_text("tokenizer.chat_template")? else {
        bail!("{name}: no chat template: the metadata has no `tokenizer.chat_template`");
    };
    let tokenizer = Tokenizer::from_gguf(&file)?;
    for (token, id) in [("bos_token", tokenizer.bos()), ("eos_token", tokenizer.eos())] {
        if let Some(id) = id {
            let text = String::from_utf8_lossy(tokenizer.piece(id));
            arguments.insert(token.into(), text.into());
        }
    }
    Ok(source.to_string())
}
