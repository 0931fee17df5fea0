//! What stands between the tags of one call. In: its text. Out: a call, or that it is none.

use super::{Body, Call, Form, SEPARATOR, Tool};
use serde_json::{Map, Value};

pub(super) fn read(form: Form, text: &str, tools: &[Tool]) -> Body {
    match form {
        Form::Glm => glm(text, tools),
        Form::Hermes => hermes(text),
        Form::DeepSeek | Form::DeepSeekPlain => deepseek(text),
    }
}

/// JSON that is cut off may go on behind what looked like the closing tag.
fn json(text: &str) -> Result<Value, Body> {
    serde_json::from_str(text).map_err(|e| if e.is_eof() { Body::Open } else { Body::Malformed })
}

fn call(name: &str, arguments: &Map<String, Value>) -> Body {
    match serde_json::to_string(arguments) {
        Ok(arguments) if is_name(name) => Body::Whole(Call { name: name.into(), arguments }),
        _ => Body::Malformed,
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['<', '>', '{', '}', '"']) && !name.chars().any(char::is_whitespace)
}

fn hermes(text: &str) -> Body {
    let value = match json(text) {
        Ok(value) => value,
        Err(body) => return body,
    };
    let name = value.get("name").and_then(Value::as_str).unwrap_or("");
    let none = Map::new();
    match value.get("arguments").or(value.get("parameters")) {
        None | Some(Value::Null) => call(name, &none),
        Some(Value::Object(arguments)) => call(name, arguments),
        // Some models write the arguments as the text that the API gives out.
        Some(Value::String(text)) => match serde_json::from_str::<Value>(text) {
            Ok(Value::Object(arguments)) => call(name, &arguments),
            _ => Body::Malformed,
        },
        Some(_) => Body::Malformed,
    }
}

fn deepseek(text: &str) -> Body {
    let Some((first, rest)) = text.split_once(SEPARATOR) else { return Body::Malformed };
    let (name, arguments) = match rest.split_once("```json") {
        Some((name, block)) if first.trim() == "function" => {
            let block = block.trim_end();
            (name.trim(), block.strip_suffix("```").unwrap_or(block))
        }
        _ => (first.trim(), rest),
    };
    match json(arguments) {
        Ok(Value::Object(arguments)) => call(name, &arguments),
        Ok(_) => Body::Malformed,
        Err(body) => body,
    }
}

fn glm(text: &str, tools: &[Tool]) -> Body {
    let (name, mut rest) = match text.find("<arg_key>") {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let name = name.trim();
    let tool = tools.iter().find(|t| t.name == name);
    let mut arguments = Map::new();
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return call(name, &arguments);
        }
        let Some((key, behind)) = rest.strip_prefix("<arg_key>").and_then(|r| r.split_once("</arg_key>"))
        else {
            return Body::Malformed;
        };
        let Some(value) = behind.trim_start().strip_prefix("<arg_value>") else { return Body::Malformed };
        let Some((value, behind)) = value.split_once("</arg_value>") else { return Body::Open };
        let schema = tool.and_then(Tool::properties).and_then(|p| p.get(key.trim()));
        arguments.insert(key.trim().into(), typed(value, schema));
        rest = behind;
    }
}

/// A value as its schema wants it. What has no schema is JSON if it reads like it.
fn typed(text: &str, schema: Option<&Value>) -> Value {
    let as_text = || Value::String(text.into());
    let Ok(value) = serde_json::from_str::<Value>(text) else { return as_text() };
    let Some(schema) = schema else { return value };
    let fits = |kind: &str| allows(schema, kind);
    let taken = match &value {
        Value::Null => fits("null"),
        Value::Bool(_) => fits("boolean"),
        Value::Number(_) => fits("number") || fits("integer"),
        Value::Array(_) => fits("array"),
        Value::Object(_) => fits("object"),
        Value::String(_) => !fits("string"),
    };
    if taken || !fits("string") { value } else { as_text() }
}

/// Whether a schema lets values of a type through.
pub(super) fn allows(schema: &Value, kind: &str) -> bool {
    let of = |v: &Value| match v {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    match schema.get("type") {
        Some(Value::String(t)) => return t == kind,
        Some(Value::Array(ts)) => return ts.iter().any(|t| t == kind),
        _ => {}
    }
    if let Some(one) = schema.get("const") {
        return of(one) == kind;
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return values.iter().any(|v| of(v) == kind);
    }
    for several in ["anyOf", "oneOf"] {
        if let Some(options) = schema.get(several).and_then(Value::as_array) {
            return options.iter().any(|o| allows(o, kind));
        }
    }
    // Nothing is said, or said elsewhere: anything but a text that reads like another type.
    kind != "string"
}
