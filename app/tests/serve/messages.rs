//! `/v1/messages`: Anthropic's shapes.

use crate::shared;
use serde_json::{Value, json};

fn ask(more: Value) -> Value {
    let mut body = json!({
        "model": "any", "max_tokens": 20, "temperature": 0, "system": [{"type": "text", "text": "You tell stories."}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Tell me a story about a cat."}]}],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn tool() -> Value {
    json!({
        "name": "jump", "description": "Jumps.",
        "input_schema": {
            "type": "object", "properties": {"height": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["height"], "additionalProperties": false,
        },
    })
}

#[test]
fn a_message_has_the_shape() {
    let value = shared().post("/v1/messages", &ask(json!({}))).ok().json();
    assert_eq!(
        (&value["type"], &value["role"], &value["stop_reason"]),
        (&json!("message"), &json!("assistant"), &json!("max_tokens"))
    );
    assert_eq!(value["content"][0]["type"], "text");
    assert_eq!(value["usage"]["output_tokens"], 20);
    let read = value["usage"]["cache_read_input_tokens"].as_u64().unwrap();
    let counted = shared().post("/v1/messages/count_tokens", &ask(json!({}))).ok().json();
    let input = value["usage"]["input_tokens"].as_u64().unwrap();
    assert_eq!(counted["input_tokens"].as_u64(), Some(input + read));
}

#[test]
fn a_stream_has_the_events() {
    let whole = shared().post("/v1/messages", &ask(json!({}))).ok().json();
    let events = shared().post("/v1/messages", &ask(json!({"stream": true}))).ok().events();
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).filter(|n| *n != "ping").collect();
    assert_eq!(names[..2], ["message_start", "content_block_start"]);
    assert_eq!(names[names.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    assert!(events.iter().all(|(name, value)| value["type"] == *name));
    let text: String = events.iter().filter_map(|(_, e)| e["delta"]["text"].as_str()).collect();
    assert_eq!(whole["content"][0]["text"], text);
    let delta = &events[events.len() - 2].1;
    assert_eq!(
        (&delta["delta"]["stop_reason"], &delta["usage"]["output_tokens"]),
        (&json!("max_tokens"), &json!(20))
    );
}

#[test]
fn tools_are_used() {
    let body = json!({
        "tools": [tool()], "max_tokens": 80,
        "tool_choice": {"type": "tool", "name": "jump", "disable_parallel_tool_use": true},
    });
    let value = shared().post("/v1/messages", &ask(body.clone())).ok().json();
    assert_eq!(value["stop_reason"], "tool_use", "{value}");
    let used = &value["content"][0];
    assert_eq!((&used["type"], &used["name"]), (&json!("tool_use"), &json!("jump")));
    assert!((1..=9).contains(&used["input"]["height"].as_i64().unwrap()), "{used}");

    let mut streamed = ask(body);
    streamed["stream"] = true.into();
    let events = shared().post("/v1/messages", &streamed).ok().events();
    let start = events.iter().find(|(name, _)| name == "content_block_start").unwrap();
    assert_eq!(
        (&start.1["content_block"]["type"], &start.1["content_block"]["input"]),
        (&json!("tool_use"), &json!({}))
    );
    let part: String = events.iter().filter_map(|(_, e)| e["delta"]["partial_json"].as_str()).collect();
    assert!(serde_json::from_str::<Value>(&part).unwrap()["height"].is_u64());

    let messages = json!([
        {"role": "user", "content": "Jump!"},
        {"role": "assistant", "content": [used]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": used["id"], "content": "done"}]},
    ]);
    let value =
        shared().post("/v1/messages", &ask(json!({"messages": messages, "tools": [tool()]}))).ok().json();
    assert_eq!(value["type"], "message", "{value}");
}

#[test]
fn errors_have_their_shape() {
    let mut body = ask(json!({}));
    body.as_object_mut().unwrap().remove("max_tokens");
    for (body, word) in [
        (body, "max_tokens"),
        (ask(json!({"messages": [{"role": "robot", "content": "a"}]})), "messages[0].role"),
        (ask(json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]})), "image"),
        (ask(json!({"tool_choice": {"type": "tool", "name": "x"}, "tools": [tool()]})), "\"x\""),
        (ask(json!({"thinking": {"type": "maybe"}})), "thinking.type"),
    ] {
        let reply = shared().post("/v1/messages", &body);
        let value = reply.json();
        assert_eq!((reply.status, &value["type"]), (400, &json!("error")), "{value}");
        assert_eq!(value["error"]["type"], "invalid_request_error");
        assert!(value["error"]["message"].as_str().unwrap().contains(word), "{value}");
    }
}
