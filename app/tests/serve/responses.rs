//! `/v1/responses`: OpenAI's responses.

use crate::shared;
use serde_json::{Value, json};

fn ask(more: Value) -> Value {
    let mut body = json!({
        "input": "Tell me a story about a bird.", "instructions": "You tell stories.", "temperature": 0,
        "max_output_tokens": 20, "reasoning": {"effort": "none"},
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn tool() -> Value {
    json!({
        "type": "function", "name": "fly",
        "parameters": {
            "type": "object", "properties": {"where": {"type": "string", "enum": ["north", "south"]}},
            "required": ["where"], "additionalProperties": false,
        },
    })
}

#[test]
fn a_response_has_the_shape() {
    let value = shared().post("/v1/responses", &ask(json!({}))).ok().json();
    assert_eq!((&value["object"], &value["status"]), (&json!("response"), &json!("incomplete")));
    assert_eq!(value["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(value["output"][0]["content"][0]["type"], "output_text");
    assert_eq!(value["usage"]["output_tokens"], 20);
}

#[test]
fn a_stream_has_the_events() {
    let whole = shared().post("/v1/responses", &ask(json!({}))).ok().json();
    let events = shared().post("/v1/responses", &ask(json!({"stream": true}))).ok().events();
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names[..4],
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added"
        ]
    );
    assert_eq!(
        names[names.len() - 4..],
        [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.incomplete"
        ]
    );
    for (i, (name, value)) in events.iter().enumerate() {
        assert_eq!((&value["type"], &value["sequence_number"]), (&json!(name), &json!(i)));
    }
    let deltas = events.iter().filter(|(name, _)| name == "response.output_text.delta");
    let text: String = deltas.filter_map(|(_, e)| e["delta"].as_str()).collect();
    assert_eq!(whole["output"][0]["content"][0]["text"], text);
}

#[test]
fn functions_are_called() {
    let body = json!({
        "tools": [tool()], "tool_choice": "required", "parallel_tool_calls": false, "max_output_tokens": 80
    });
    let value = shared().post("/v1/responses", &ask(body.clone())).ok().json();
    assert_eq!(value["status"], "completed", "{value}");
    let call = &value["output"][0];
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("fly")));
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(["north", "south"].contains(&arguments["where"].as_str().unwrap()));

    let mut streamed = ask(body);
    streamed["stream"] = true.into();
    let events = shared().post("/v1/responses", &streamed).ok().events();
    let done = events.iter().find(|(n, _)| n == "response.function_call_arguments.done").unwrap();
    assert_eq!(done.1["arguments"], call["arguments"]);
    assert_eq!(events.last().unwrap().0, "response.completed");

    let input = json!([
        {"role": "user", "content": [{"type": "input_text", "text": "Fly!"}]}, call,
        {"type": "function_call_output", "call_id": call["call_id"], "output": "flown"},
    ]);
    let value = shared().post("/v1/responses", &ask(json!({"input": input}))).ok().json();
    assert_eq!(value["output"][0]["type"], "message");
}
