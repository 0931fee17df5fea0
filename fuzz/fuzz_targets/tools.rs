//! Any text as what a model says with tools: no text is lost, and where it is cut makes no difference.
#![no_main]

use llm::tools::{Event, Form, Parser, Tool};

fn heard(form: Form, pieces: &[&str]) -> Vec<Event> {
    let parameters = serde_json::json!({"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}});
    let tool = Tool { name: "weather".into(), description: None, parameters };
    let (mut parser, mut out) = (Parser::new(form, vec![tool]), vec![]);
    for piece in pieces {
        parser.push(piece, &mut out);
    }
    parser.finish(&mut out);
    let mut merged: Vec<Event> = vec![];
    for event in out {
        match (merged.last_mut(), event) {
            (Some(Event::Text(last)), Event::Text(text)) => last.push_str(&text),
            (_, event) => merged.push(event),
        }
    }
    merged
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let pieces: Vec<&str> = text.split_inclusive(|c: char| !c.is_alphanumeric()).collect();
    for form in [Form::Glm, Form::Hermes, Form::DeepSeek, Form::DeepSeekPlain] {
        let whole = heard(form, &[&text]);
        assert_eq!(heard(form, &pieces), whole);
        for event in &whole {
            if let Event::Call(call) = event {
                assert!(serde_json::from_str::<serde_json::Value>(&call.arguments).unwrap().is_object());
            }
        }
    }
});
