//! What a model may say, as a grammar for llguidance (its dialect of Lark). In: the form of calls, tools, what was asked
//! for. Out: text.
//!
//! Everything that a grammar of calls lets through is read by [`super::Parser`] as calls of the given tools whose
//! arguments fit their schemas.

use super::{Form, SEPARATOR, Tool, body};
use serde_json::{Value, json};
use std::fmt::Write;

/// White space inside JSON: one space, or a line's end with its indentation. Without a bound a model may never leave it.
const WHITE: &str = r"( |\n {0,24})?";

/// Whether and how tools are called.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Must<'a> {
    /// The model decides. What is no call is text, or a document of the schema.
    May(Option<&'a Value>),
    /// At least one call.
    Call,
}

/// Whether reasoning comes before an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Thought {
    No,
    /// If the model opens it.
    Free,
    /// The prompt has opened it.
    Open,
}

/// A grammar of an answer that is one JSON document.
pub fn document(schema: &Value, thought: Thought) -> String {
    let mut out = beginning(thought);
    let _ = writeln!(out, "answer: {}", json_rule(schema));
    out
}

/// A grammar of answers that may or must call tools.
pub fn calls(form: Form, tools: &[Tool], must: Must, parallel: bool, thought: Thought) -> String {
    let mut out = beginning(thought);
    let open = form.open();
    let escaped = regex_escape(open);
    match must {
        Must::May(None) => {
            let many = if parallel { "*" } else { "?" };
            let _ = writeln!(out, "answer: (head call){many} TAIL?");
            let _ = writeln!(out, "head[lazy]: /(?s:.*){escaped}/");
            let _ = writeln!(out, "TAIL: /(?s:.+)/ & ~/(?s:.*){escaped}(?s:.*)/");
        }
        Must::Call | Must::May(Some(_)) => {
            let more = if parallel { format!(" (\"\\n\"? {} call)*", text(open)) } else { String::new() };
            let (before, behind) = match form.around() {
                [begin, end] => (format!("{} ", text(begin)), format!(" {}", text(end))),
                _ => (String::new(), String::new()),
            };
            let or = match must {
                Must::May(Some(schema)) => format!(" | {}", json_rule(schema)),
                _ => String::new(),
            };
            let _ = writeln!(out, "answer: \"\\n\"? {before}{} call{more}{behind}{or}", text(open));
        }
    }
    let names: Vec<String> = (0..tools.len()).map(|i| format!("tool{i}")).collect();
    let _ = writeln!(out, "call: {}", names.join(" | "));
    for (i, tool) in tools.iter().enumerate() {
        match form {
            Form::Glm => glm(&mut out, i, tool),
            _ => json_call(&mut out, form, i, tool),
        }
    }
    if form == Form::Glm {
        out.push_str("plain[lazy]: /(?s:.*)<\\/arg_value>/\n");
    }
    out
}

fn beginning(thought: Thought) -> String {
    let start = match thought {
        Thought::No => return "start: answer\n".into(),
        Thought::Free => r#"("<think>" think "\n"? "\n"?)? answer"#,
        Thought::Open => r#"think "\n"? "\n"? answer"#,
    };
    format!("start: {start}\nthink[lazy]: /(?s:.*)<\\/think>/\n")
}

/// A text as a Lark literal.
fn text(of: &str) -> String {
    Value::String(of.into()).to_string()
}

fn regex_escape(of: &str) -> String {
    let special = |c: char| r"\.+*?()|[]{}^$/".contains(c);
    of.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

fn json_rule(schema: &Value) -> String {
    with_options(schema, json!({"whitespace_pattern": WHITE, "coerce_one_of": true}))
}

/// For arguments of tools: what cannot be enforced of their schemas is left out, since agents' tools were not written for
/// this.
fn arguments_rule(schema: &Value) -> String {
    with_options(schema, json!({"whitespace_pattern": WHITE, "lenient": true}))
}

fn with_options(schema: &Value, options: Value) -> String {
    let mut schema = schema.clone();
    if schema == Value::Bool(true) {
        schema = json!({});
    }
    if let Some(object) = schema.as_object_mut() {
        object.insert("x-guidance".into(), options);
    }
    format!("%json {schema}")
}

fn json_call(out: &mut String, form: Form, i: usize, tool: &Tool) {
    let close = text(form.close());
    let arguments = &tool.parameters;
    let _ = match form {
        Form::Hermes => {
            let schema = json!({
                "type": "object",
                "properties": {"name": {"const": tool.name}, "arguments": arguments},
                "required": ["name", "arguments"],
                "additionalProperties": false,
            });
            writeln!(out, "tool{i}: \"\\n\"? {} \"\\n\"? {close}", arguments_rule(&hoisted(schema)))
        }
        Form::DeepSeek => {
            let head = text(&format!("function{SEPARATOR}{}\n```json\n", tool.name));
            writeln!(out, "tool{i}: {head} {} \"\\n```\" {close}", arguments_rule(arguments))
        }
        _ => {
            let head = text(&format!("{}{SEPARATOR}", tool.name));
            writeln!(out, "tool{i}: {head} {} {close}", arguments_rule(arguments))
        }
    };
}

/// Definitions that the arguments' references mean are looked for at the root.
fn hoisted(mut schema: Value) -> Value {
    for place in ["$defs", "definitions"] {
        if let Some(definitions) = schema["properties"]["arguments"].get(place).cloned() {
            schema[place] = definitions;
        }
    }
    schema
}

fn glm(out: &mut String, i: usize, tool: &Tool) {
    let none = serde_json::Map::new();
    let properties = tool.properties().unwrap_or(&none);
    let mut arguments = String::new();
    for (j, (name, _)) in properties.iter().enumerate() {
        let optional = if tool.requires(name) { "" } else { "?" };
        let _ = write!(arguments, " a{i}x{j}{optional}");
    }
    if properties.is_empty() && tool.parameters.get("additionalProperties") != Some(&Value::Bool(false)) {
        let _ = write!(arguments, " a{i}any*");
        let _ = writeln!(
            out,
            "a{i}any: \"<arg_key>\" /[A-Za-z0-9_.\\-]+/ \"</arg_key>\" \"\\n\"? \"<arg_value>\" plain \"\\n\"?"
        );
    }
    let _ = writeln!(out, "tool{i}: {} \"\\n\"?{arguments} \"</tool_call>\"", text(&tool.name));
    for (j, (name, schema)) in properties.iter().enumerate() {
        let key = text(&format!("<arg_key>{name}</arg_key>"));
        let _ = writeln!(
            out,
            "a{i}x{j}: {key} \"\\n\"? \"<arg_value>\" {} \"\\n\"?",
            value(schema, &tool.parameters)
        );
    }
}

/// A value with its closing tag: texts stand without quotes.
fn value(schema: &Value, of: &Value) -> String {
    let close = "\"</arg_value>\"";
    let is_text = body::allows(schema, "string");
    let choices: Option<Vec<&str>> = match (schema.get("enum"), schema.get("const")) {
        (Some(Value::Array(values)), _) => values.iter().map(Value::as_str).collect(),
        (_, Some(Value::String(one))) => Some(vec![one]),
        _ => None,
    };
    match choices {
        Some(choices) if is_text && !choices.is_empty() => {
            let listed: Vec<String> = choices.iter().map(|c| text(&format!("{c}</arg_value>"))).collect();
            format!("({})", listed.join(" | "))
        }
        _ if is_text => match schema.get("maxLength").and_then(Value::as_u64).filter(|n| *n <= 256) {
            Some(most) => format!("/(?s:[^<]{{0,{most}}})/ {close}"),
            None => "plain".into(),
        },
        _ => {
            let mut schema = schema.clone();
            for place in ["$defs", "definitions"] {
                if let (Some(definitions), Some(object)) = (of.get(place), schema.as_object_mut()) {
                    object.insert(place.into(), definitions.clone());
                }
            }
            format!("{} {close}", arguments_rule(&schema))
        }
    }
}
