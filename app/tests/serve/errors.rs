//! Requests that are wrong: a status, a body that says what, and nothing broken.

use crate::client::Request;
use crate::{Server, shared};
use serde_json::{Value, json};

fn refused(path: &str, body: &Value, param: Option<&str>) {
    let reply = shared().post(path, body);
    let value = reply.json();
    let error = &value["error"];
    assert_eq!((reply.status, error["type"].as_str()), (400, Some("invalid_request_error")), "{value}");
    assert_eq!(error["param"].as_str(), param, "{value}");
    assert!(error["message"].as_str().unwrap().len() > 5, "{value}");
}

#[test]
fn wrong_fields_are_named() {
    let user = json!([{"role": "user", "content": "a"}]);
    for (param, value) in [
        ("temperature", json!("hot")),
        ("temperature", json!(9)),
        ("max_tokens", json!(-1)),
        ("n", json!(0)),
        ("top_logprobs", json!(3)),
        ("stop", json!({})),
        ("stream", json!("yes")),
        ("logit_bias.99999999", json!({"99999999": 1})),
        ("response_format.type", json!({"type": "xml"})),
        ("response_format", json!({"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}})),
        ("tools[0].type", json!([{"type": "magic"}])),
        ("tools[0].function.name", json!([{"type": "function", "function": {"name": "a b"}}])),
        ("tool_choice", json!("perhaps")),
        ("tool_choice", json!("required")),
        ("messages", json!([])),
        ("messages[0].role", json!([{"content": "a"}])),
        ("messages[0].content", json!([{"role": "user"}])),
        ("messages[0].content[0]", json!([{"role": "user", "content": [{"type": "image_url"}]}])),
        ("chat_template_kwargs", json!([1])),
        ("reasoning_effort", json!("much")),
    ] {
        let mut body = json!({"messages": user});
        body[param.split(['.', '[']).next().unwrap()] = value;
        refused("/v1/chat/completions", &body, Some(param));
    }
    refused("/v1/chat/completions", &json!({}), Some("messages"));
    refused("/v1/completions", &json!({"prompt": 3}), Some("prompt"));
    refused("/v1/completions", &json!({"prompt": [1, 99_999_999]}), Some("prompt"));
    refused("/v1/completions", &json!({"prompt": "a", "suffix": "b"}), Some("suffix"));
    refused(
        "/v1/responses",
        &json!({"input": "a", "previous_response_id": "x"}),
        Some("previous_response_id"),
    );
    refused("/detokenize", &json!({"tokens": [99_999_999]}), Some("tokens[0]"));
    refused("/tokenize", &json!({"content": 3}), Some("content"));
}

#[test]
fn broken_json_says_where() {
    let reply = Request::new("POST", "/v1/chat/completions").body("{\"messages\": [}").send(shared().address);
    assert_eq!(reply.status, 400);
    assert!(
        reply.json()["error"]["message"].as_str().unwrap().contains("line 1 column 15"),
        "{}",
        reply.text()
    );
    for body in ["", "3", "[]", "null", "\u{0}", "{\"messages\": \"\\ud800\"}"] {
        let reply = Request::new("POST", "/v1/chat/completions").body(body).send(shared().address);
        assert_eq!(reply.status, 400, "{body:?}");
        assert!(reply.json()["error"]["message"].is_string());
    }
    let reply = Request::new("POST", "/v1/completions").body(vec![0xff; 20]).send(shared().address);
    assert_eq!(reply.status, 400);
}

#[test]
fn prompts_that_do_not_fit_say_so() {
    let long = "dog ".repeat(5000);
    let reply = shared().post("/v1/completions", &json!({"prompt": long}));
    let value = reply.json();
    assert_eq!(
        (reply.status, value["error"]["code"].as_str()),
        (400, Some("context_length_exceeded")),
        "{value}"
    );
    assert!(value["error"]["message"].as_str().unwrap().contains("the context holds 1024"), "{value}");
}

#[test]
fn paths_and_methods() {
    let reply = shared().get("/v1/nothing");
    assert_eq!(
        (reply.status, reply.json()["error"]["code"].as_str().map(String::from)),
        (404, Some("not_found".into()))
    );
    let reply = shared().get("/v1/chat/completions");
    assert_eq!((reply.status, reply.headers["allow"].as_str()), (405, "POST"));
    assert!(reply.json()["error"]["message"].is_string());
    assert_eq!(shared().get("/v1/models/gpt-4").status, 404);
    assert_eq!(shared().get("/../Cargo.toml").status, 404);
    let head = Request::new("HEAD", "/health").send(shared().address);
    assert_eq!((head.status, head.body.len()), (200, 0));
    let reply = shared().get("/profile?depth=99999999");
    assert_eq!(reply.status, 400, "{}", reply.text());
}

#[test]
fn keys_are_asked_for() {
    let server = Server::ready(&["--api-key", "s3cret"]);
    for (name, value, status) in [
        ("x-nothing", "", 401),
        ("authorization", "Bearer wrong1", 401),
        ("authorization", "Bearer s3cret2", 401),
        ("authorization", "Bearer ", 401),
        ("authorization", "Basic s3cret", 401),
        ("authorization", "Bearer s3cret", 200),
        ("authorization", "bearer s3cret", 200),
        ("x-api-key", "s3cret", 200),
        ("x-api-key", "s3cre", 401),
    ] {
        let reply = Request::new("GET", "/v1/models").header(name, value).send(server.address);
        assert_eq!(reply.status, status, "{name}: {value}");
    }
    let reply = Request::new("POST", "/v1/messages").body("{}").send(server.address);
    assert_eq!((reply.status, &reply.json()["error"]["type"]), (401, &json!("authentication_error")));
    assert_eq!((server.get("/health").status, server.get("/").status), (200, 200), "open to all");
}

#[test]
fn pages_of_others_are_kept_out() {
    let server = Server::ready(&["--cors", "https://example.org"]);
    let own = format!("http://{}", server.address);
    for (origin, status) in
        [("https://evil.example", 403), ("null", 403), (own.as_str(), 200), ("https://example.org", 200)]
    {
        let reply = Request::new("GET", "/v1/models").header("origin", origin).send(server.address);
        assert_eq!(reply.status, status, "{origin}");
        let allowed = reply.headers.get("access-control-allow-origin").map(String::as_str);
        assert_eq!(allowed, (origin == "https://example.org").then_some(origin));
    }
    let asked = Request::new("OPTIONS", "/v1/chat/completions").header("origin", "https://example.org");
    let reply = asked.header("access-control-request-method", "POST").send(server.address);
    assert_eq!(reply.status, 204);
    assert!(reply.headers["access-control-allow-headers"].contains("authorization"));
}
