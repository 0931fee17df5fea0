//! `/v1/chat/completions`, `/v1/completions`, tokens, models and what describes the server.

use crate::shared;
use serde_json::{Value, json};

fn ask(more: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Tell me a story about a dog."}],
        "temperature": 0, "max_tokens": 24, "chat_template_kwargs": {"enable_thinking": false},
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn chat(more: Value) -> Value {
    shared().post("/v1/chat/completions", &ask(more)).ok().json()
}

#[test]
fn an_answer_has_the_shape() {
    let value = chat(json!({"unknown_field": {"is": "ignored"}, "temperature": null, "seed": 1}));
    assert_eq!(
        (value["object"].as_str(), value["model"].as_str()),
        (Some("chat.completion"), Some("storyteller"))
    );
    let choice = &value["choices"][0];
    assert_eq!((choice["index"].as_u64(), choice["finish_reason"].as_str()), (Some(0), Some("length")));
    assert_eq!(choice["message"]["role"], "assistant");
    assert!(choice["message"]["content"].as_str().unwrap().len() > 20, "{value}");
    let usage = &value["usage"];
    assert_eq!(usage["completion_tokens"], 24);
    let sum = usage["prompt_tokens"].as_u64().unwrap() + 24;
    assert_eq!(usage["total_tokens"].as_u64(), Some(sum));
    assert!(usage["prompt_tokens_details"]["cached_tokens"].is_u64());
    assert!(value["timings"]["tokens_per_second"].as_f64().unwrap() > 0.0, "{value}");
}

#[test]
fn a_stream_says_the_same() {
    let whole = chat(json!({}));
    let body = ask(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let reply = shared().post("/v1/chat/completions", &body).ok();
    assert_eq!(reply.headers["content-type"], "text/event-stream");
    let events = reply.events();
    let (last, chunks) = events.split_last().unwrap();
    assert_eq!(last.1, "[DONE]");
    let text: String =
        chunks.iter().filter_map(|(_, c)| c["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(whole["choices"][0]["message"]["content"], text);
    assert_eq!(chunks[0].1["choices"][0]["delta"]["role"], "assistant");
    let (usage, chunks) = chunks.split_last().unwrap();
    assert_eq!(
        (usage.1["choices"].as_array().unwrap().len(), &usage.1["usage"]["completion_tokens"]),
        (0, &json!(24))
    );
    let finish = &chunks.last().unwrap().1;
    assert_eq!(finish["choices"][0]["finish_reason"], "length");
    assert_eq!(finish["timings"]["context"], 1024);
    assert!(chunks.iter().all(|(_, c)| c["object"] == "chat.completion.chunk" && c["id"] == usage.1["id"]));
}

#[test]
fn several_answers_differ_and_seeds_repeat() {
    let body = json!({"n": 3, "temperature": 1.0, "seed": 5, "max_tokens": 12});
    let texts = |v: Value| -> Vec<String> {
        let choices = v["choices"].as_array().unwrap().clone();
        choices.iter().map(|c| c["message"]["content"].as_str().unwrap().into()).collect()
    };
    let first = texts(chat(body.clone()));
    assert_eq!(first.len(), 3);
    assert!(first[0] != first[1] || first[1] != first[2]);
    assert_eq!(first, texts(chat(body.clone())));
    let mut streamed = ask(body);
    streamed["stream"] = true.into();
    let events = shared().post("/v1/chat/completions", &streamed).ok().events();
    for (i, text) in first.iter().enumerate() {
        let choices = events.iter().map(|(_, e)| &e["choices"][0]).filter(|c| c["index"] == i);
        let said: String = choices.filter_map(|c| c["delta"]["content"].as_str()).collect();
        assert_eq!(said, *text);
    }
}

#[test]
fn stop_texts_end_answers() {
    let text = chat(json!({}))["choices"][0]["message"]["content"].as_str().unwrap().to_string();
    let stop = text.split_whitespace().nth(4).unwrap();
    let value = chat(json!({"stop": stop}));
    let choice = &value["choices"][0];
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(choice["message"]["content"].as_str(), text.split(stop).next());
}

#[test]
fn log_probabilities_are_of_the_tokens() {
    let value = chat(json!({"logprobs": true, "top_logprobs": 3, "max_tokens": 6}));
    let choice = &value["choices"][0];
    let content = choice["logprobs"]["content"].as_array().unwrap();
    let joined: String = content.iter().map(|t| t["token"].as_str().unwrap()).collect();
    assert_eq!(joined.trim_start(), choice["message"]["content"].as_str().unwrap().trim_start());
    for token in content {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!((top.len(), &top[0]["logprob"]), (3, &token["logprob"]), "the most probable was taken");
        assert!(
            token["logprob"].as_f64().unwrap() <= 0.0
                && top[1]["logprob"].as_f64() <= top[0]["logprob"].as_f64()
        );
    }
    let body = json!({"prompt": "Once upon a", "logprobs": 2, "max_tokens": 3, "temperature": 0});
    let value = shared().post("/v1/completions", &body).ok().json();
    let logprobs = &value["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), 3);
    assert_eq!(logprobs["text_offset"][0], 0);
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 2);
}

#[test]
fn biases_forbid_tokens() {
    let value = chat(json!({"logprobs": true, "max_tokens": 1}));
    let token = value["choices"][0]["logprobs"]["content"][0]["token"].as_str().unwrap().to_string();
    let ids = shared().post("/tokenize", &json!({"content": token})).ok().json();
    let id = ids["tokens"][0].to_string();
    let value = chat(json!({"logprobs": true, "max_tokens": 1, "logit_bias": {id: -100}}));
    assert_ne!(value["choices"][0]["logprobs"]["content"][0]["token"], token);
}

#[test]
fn json_is_enforced() {
    let schema = json!({
        "type": "object",
        "properties": {
            "animal": {"type": "string", "enum": ["dog", "cat"]},
            "legs": {"type": "integer", "minimum": 0, "maximum": 9},
        },
        "required": ["animal", "legs"],
        "additionalProperties": false,
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "animal", "schema": schema}});
    let value = chat(json!({"response_format": format, "max_tokens": 100}));
    assert_eq!(value["choices"][0]["finish_reason"], "stop", "{value}");
    let text = value["choices"][0]["message"]["content"].as_str().unwrap();
    let animal: Value = serde_json::from_str(text).unwrap();
    assert!(
        ["dog", "cat"].contains(&animal["animal"].as_str().unwrap()) && animal["legs"].is_u64(),
        "{text}"
    );
}

fn weather() -> Value {
    json!([{"type": "function", "function": {
        "name": "weather", "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "enum": ["forest", "park"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 5},
            },
            "required": ["place", "days"],
            "additionalProperties": false,
        },
    }}])
}

fn check_call(function: &Value) {
    assert_eq!(function["name"], "weather");
    let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
    assert!(["forest", "park"].contains(&arguments["place"].as_str().unwrap()), "{arguments}");
    assert!((1..=5).contains(&arguments["days"].as_i64().unwrap()), "{arguments}");
}

#[test]
fn tool_calls_are_enforced() {
    let named = json!({"type": "function", "function": {"name": "weather"}});
    for choice in [json!("required"), named] {
        let body = json!({
            "tools": weather(), "tool_choice": choice, "parallel_tool_calls": false, "max_tokens": 100
        });
        let value = chat(body.clone());
        let answer = &value["choices"][0];
        assert_eq!(answer["finish_reason"], "tool_calls", "{value}");
        assert!(answer["message"]["content"].is_null());
        let calls = answer["message"]["tool_calls"].as_array().unwrap();
        assert_eq!(calls.len(), 1);
        check_call(&calls[0]["function"]);

        let mut streamed = ask(body);
        streamed["stream"] = true.into();
        let events = shared().post("/v1/chat/completions", &streamed).ok().events();
        let call = events.iter().find_map(|(_, e)| e["choices"][0]["delta"]["tool_calls"].get(0)).unwrap();
        assert_eq!((&call["index"], &call["type"]), (&json!(0), &json!("function")));
        check_call(&call["function"]);
        assert!(events.iter().any(|(_, e)| e["choices"][0]["finish_reason"] == "tool_calls"));
    }
    // A conversation with a call and its result is read.
    let call =
        json!({"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{\"days\": 1}"}});
    let messages = json!([
        {"role": "user", "content": "How is the weather?"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    ]);
    let value = chat(json!({"messages": messages, "tools": weather(), "tool_choice": "none"}));
    assert!(value["choices"][0]["message"]["tool_calls"].is_null(), "{value}");
}

#[test]
fn schemas_that_cannot_be_enforced() {
    let odd = json!([{"type": "function", "function": {
        "name": "odd", "parameters": {"type": "object", "properties": {"a": {"type": "nonsense"}}},
    }}]);
    // The model decides whether to call: the schema is no more than a hint.
    chat(json!({"tools": odd, "max_tokens": 2}));
    let body = ask(json!({"tools": odd, "tool_choice": "required"}));
    let reply = shared().post("/v1/chat/completions", &body);
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("tools")), "{}", reply.text());
}

#[test]
fn texts_are_continued() {
    let body =
        json!({"prompt": ["Once upon a time", "The dog"], "max_tokens": 5, "temperature": 0, "echo": true});
    let value = shared().post("/v1/completions", &body).ok().json();
    let choices = value["choices"].as_array().unwrap();
    assert_eq!((choices.len(), value["object"].as_str()), (2, Some("text_completion")));
    assert!(choices[0]["text"].as_str().unwrap().starts_with("Once upon a time"));
    assert_eq!(choices[1]["index"], 1);
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let events = shared().post("/v1/completions", &streamed).ok().events();
    for choice in choices {
        let parts = events.iter().map(|(_, e)| &e["choices"][0]).filter(|c| c["index"] == choice["index"]);
        let text: String = parts.filter_map(|c| c["text"].as_str()).collect();
        assert_eq!(choice["text"], text);
    }
    let ids =
        shared().post("/tokenize", &json!({"content": "Once upon a time", "add_special": true})).ok().json();
    let body = json!({"prompt": ids["tokens"], "max_tokens": 5, "temperature": 0});
    let value = shared().post("/v1/completions", &body).ok().json();
    let text = format!("Once upon a time{}", value["choices"][0]["text"].as_str().unwrap());
    assert_eq!(choices[0]["text"], text, "the same prompt as tokens");
}

#[test]
fn tokens_there_and_back() {
    let text = "A dog, a cat & é🦙";
    let ids = shared().post("/tokenize", &json!({"content": text})).ok().json();
    let back = shared().post("/detokenize", &json!({"tokens": ids["tokens"]})).ok().json();
    assert_eq!(back["content"], text);
    let pieces = shared().post("/tokenize", &json!({"content": "dog", "with_pieces": true})).ok().json();
    assert!(pieces["tokens"][0]["piece"].is_string() && pieces["tokens"][0]["id"].is_u64());
}

#[test]
fn the_server_describes_itself() {
    let models = shared().get("/v1/models").ok().json();
    assert_eq!(
        (models["data"][0]["id"].as_str(), models["data"][0]["context_length"].as_u64()),
        (Some("storyteller"), Some(1024))
    );
    assert_eq!(shared().get("/v1/models/storyteller").ok().json()["id"], "storyteller");
    let described = shared().get("/openapi.json").ok().json();
    for path in ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/models/{id}", "/metrics"] {
        assert!(described["paths"][path].is_object(), "{path}");
    }
    let page = shared().get("/").ok();
    assert!(page.headers["content-type"].starts_with("text/html"));
    assert!(page.headers["content-security-policy"].starts_with("default-src 'self'"));
    let metrics = shared().get("/metrics").ok().text();
    for name in [
        "requests_total",
        "generated_tokens_total",
        "first_token_seconds_bucket{le=\"+Inf\"}",
        "kv_pages_used",
    ] {
        assert!(metrics.contains(&format!("\nglimmer_{name} ")), "{name}: {metrics}");
    }
}

#[test]
fn the_cache_is_used_and_can_be_left_alone() {
    let body = ask(
        json!({"messages": [{"role": "user", "content": "A story about a small boat and a big storm."}]}),
    );
    shared().post("/v1/chat/completions", &body).ok();
    let mut fresh = body.clone();
    fresh["cache_prompt"] = false.into();
    let value = shared().post("/v1/chat/completions", &fresh).ok().json();
    assert_eq!(value["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}
