//! `GET /openapi.json`: the API in OpenAPI's form, made from the table of routes and the tables of fields here. The
//! tests hold it against the server: a field that is described is refused, by its name, when its type is wrong.

use super::routes::{ROUTES, Route, What};
use serde_json::{Map, Value, json};

/// A field's name, its JSON type (several with `|`) and what it means.
pub type Field = (&'static str, &'static str, &'static str);

const SAMPLING: &[Field] = &[
    (
        "temperature",
        "number",
        "0 takes the most probable token; up to 2; 0.8 if the model recommends none, as with the next five",
    ),
    ("top_p", "number", "Choose among the most probable tokens that have this probability together; 0.95"),
    ("top_k", "integer", "Choose among the k most probable tokens; 0 or -1: all; 40"),
    ("min_p", "number", "Choose among tokens this probable, relative to the most probable; 0.05"),
    ("repeat_penalty", "number", "Above 1: against repetition; 1. `repetition_penalty` is the same"),
    ("repeat_last_n", "integer", "Tokens that penalties look at; -1: all; 64"),
    ("presence_penalty", "number", "From -2 to 2; taken once from tokens that were there"),
    ("frequency_penalty", "number", "From -2 to 2; taken for each time that a token was there"),
    ("seed", "integer", "The same seed gives the same answer"),
    ("logit_bias", "object", "Token ids to numbers from -100, a ban, to 100"),
    ("cache_prompt", "boolean", "Whether what prompts have in common is kept and used; true"),
];

const CHAT: &[Field] = &[
    ("messages", "array", "Objects with role (system, developer, user, assistant, tool) and content; needed"),
    ("max_completion_tokens", "integer", "Tokens of an answer at most; `max_tokens` is the same"),
    ("stop", "string|array", "Texts that end the answer and are not part of it"),
    ("n", "integer", "Answers, from 1 to 16"),
    ("stream", "boolean", "Server-sent events as the answer comes"),
    ("stream_options", "object", "include_usage: a last event with the number of tokens"),
    ("logprobs", "boolean", "Log probabilities of the answer's tokens"),
    ("top_logprobs", "integer", "So many alternatives beside each, up to 20"),
    ("response_format", "object", "type text, json_object or json_schema, which is enforced"),
    ("tools", "array", "Functions that the model may call"),
    ("tool_choice", "string|object", "none, auto, required or {type: function, function: {name}}; enforced"),
    ("parallel_tool_calls", "boolean", "Whether one answer may have several calls; true"),
    ("chat_template_kwargs", "object", "Further arguments of the chat template, as enable_thinking"),
    ("reasoning_effort", "string", "none and minimal turn reasoning off where the template has a switch"),
];

const COMPLETIONS: &[Field] = &[
    ("prompt", "string|array", "A text, token ids, or a list of either; needed"),
    ("max_tokens", "integer", "Tokens of an answer at most"),
    ("stop", "string|array", "Texts that end the answer and are not part of it"),
    ("n", "integer", "Answers to each prompt, from 1 to 16"),
    ("stream", "boolean", "Server-sent events as the answer comes"),
    ("stream_options", "object", "include_usage: a last event with the number of tokens"),
    ("logprobs", "integer", "So many alternatives beside each token, up to 20"),
    ("echo", "boolean", "Puts the prompt before the answer"),
];

const MESSAGES: &[Field] = &[
    ("messages", "array", "Objects with role (user, assistant) and content: text or blocks; needed"),
    ("max_tokens", "integer", "Tokens of an answer at most; needed"),
    ("system", "string|array", "What the model is told before the conversation"),
    ("stop_sequences", "array", "Texts that end the answer and are not part of it"),
    ("stream", "boolean", "Server-sent events as the answer comes"),
    ("tools", "array", "Tools with name, description and input_schema"),
    ("tool_choice", "object", "type auto, any, tool (with a name) or none; enforced"),
    ("thinking", "object", "type enabled or disabled, for templates that have a switch"),
    ("chat_template_kwargs", "object", "Further arguments of the chat template"),
];

const RESPONSES: &[Field] = &[
    ("input", "string|array", "A text, or messages, function_call and function_call_output items; needed"),
    ("instructions", "string", "What the model is told before the conversation"),
    ("max_output_tokens", "integer", "Tokens of an answer at most"),
    ("stream", "boolean", "Server-sent events as the answer comes"),
    ("tools", "array", "Functions with name, description and parameters"),
    ("tool_choice", "string|object", "none, auto, required or {type: function, name}; enforced"),
    ("parallel_tool_calls", "boolean", "Whether one answer may have several calls; true"),
    ("text", "object", "format: type text, json_object or json_schema, which is enforced"),
    ("reasoning", "object", "effort: none and minimal turn reasoning off where the template has a switch"),
    ("chat_template_kwargs", "object", "Further arguments of the chat template"),
];

const TOKENIZE: &[Field] = &[
    ("content", "string", "The text; needed"),
    ("add_special", "boolean", "Puts the token that begins a text first, if the model has one; false"),
    ("parse_special", "boolean", "Takes the texts of control tokens for those tokens; true"),
    ("with_pieces", "boolean", "Objects with id and piece instead of ids; false"),
];

const DETOKENIZE: &[Field] = &[("tokens", "array", "Token ids; needed")];

/// The fields of a body, those for sampling among them.
pub fn fields(what: What) -> Vec<Field> {
    let (own, sampled) = match what {
        What::Chat => (CHAT, true),
        What::Completions => (COMPLETIONS, true),
        What::Messages => (MESSAGES, true),
        What::CountTokens => (MESSAGES, false),
        What::Responses => (RESPONSES, true),
        What::Tokenize => (TOKENIZE, false),
        What::Detokenize => (DETOKENIZE, false),
        _ => (&[][..], false),
    };
    let more = if sampled { SAMPLING } else { &[] };
    own.iter().chain(more).copied().collect()
}

fn needed(what: What, field: &Field) -> bool {
    field.2.ends_with("needed") && !(what == What::CountTokens && field.0 == "max_tokens")
}

fn body(what: What) -> Value {
    let fields = fields(what);
    let property = |(name, kinds, about): &Field| {
        let kinds: Vec<&str> = kinds.split('|').collect();
        let kind = if kinds.len() == 1 { json!(kinds[0]) } else { json!(kinds) };
        (name.to_string(), json!({"type": kind, "description": about}))
    };
    let required: Vec<&str> = fields.iter().filter(|f| needed(what, f)).map(|f| f.0).collect();
    let properties: Map<String, Value> = fields.iter().map(property).collect();
    json!({"type": "object", "required": required, "properties": properties})
}

fn operation(route: &Route) -> Value {
    let error = |text: &str| json!({"description": text});
    let mut value = json!({
        "summary": route.summary,
        "operationId": format!("{:?}", route.what),
        "responses": {"200": {"description": "The answer"}},
    });
    if route.method == "POST" {
        value["requestBody"] =
            json!({"required": true, "content": {"application/json": {"schema": body(route.what)}}});
        value["responses"]["400"] = error("A field is wrong; `param` names it");
        value["responses"]["413"] = error("The body is too large");
        value["responses"]["429"] = error("Too many requests wait; see Retry-After");
        value["responses"]["503"] = error("The model is being loaded, or the server stops");
    }
    match route.what {
        What::Model => {
            let id = json!({"name": "id", "in": "path", "required": true, "schema": {"type": "string"}});
            value["parameters"] = json!([id]);
            value["responses"]["404"] = error("No model has this id");
        }
        What::Health => value["responses"]["503"] = error("The model is being loaded"),
        What::Profile => {
            let depth = json!({
                "name": "depth", "in": "query", "description": "Positions that are filled before the token",
                "schema": {"type": "integer", "minimum": 0},
            });
            value["parameters"] = json!([depth]);
            value["responses"]["409"] = error("Answers are being made");
        }
        _ => {}
    }
    if !route.open {
        value["security"] = json!([{"bearer": []}, {"key": []}, {}]);
        value["responses"]["401"] = error("The key of --api-key is missing or wrong");
    }
    value
}

pub fn description() -> Value {
    let mut paths = Map::new();
    for route in ROUTES {
        let entry = paths.entry(route.path).or_insert(json!({}));
        entry[route.method.to_lowercase()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Glimmer",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "A language model behind the shapes of OpenAI's and Anthropic's APIs. Fields that are not \
                            known are ignored.",
        },
        "paths": paths,
        "components": {"securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::routes::understand;

    /// A body that is understood.
    fn smallest(what: What) -> Value {
        match what {
            What::Chat => json!({"messages": [{"role": "user", "content": "a"}]}),
            What::Completions => json!({"prompt": "a"}),
            What::Messages | What::CountTokens => {
                json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1})
            }
            What::Responses => json!({"input": "a"}),
            What::Tokenize => json!({"content": "a"}),
            What::Detokenize => json!({"tokens": [1]}),
            _ => json!({}),
        }
    }

    #[test]
    fn every_field_is_known_by_its_name() {
        for route in ROUTES {
            let what = route.what;
            let body = |value: &Value| understand(what, value.to_string().as_bytes(), 100);
            assert!(body(&smallest(what)).is_ok(), "{what:?}");
            for field in fields(what) {
                let (name, kinds, _) = field;
                let wrong = if kinds.contains("object") { json!(3.5) } else { json!({"wrong": 1}) };
                let mut given = smallest(what);
                given[name] = wrong;
                let refused = body(&given).map(|_| ()).unwrap_err();
                let param = refused.param.unwrap_or_default();
                assert!(param.starts_with(name), "{what:?} {name}: {param:?} {}", refused.message);
                given[name] = Value::Null;
                assert_eq!(body(&given).is_ok(), !needed(what, &field), "{what:?} {name}: null");
            }
        }
    }
}
