use super::*;
use compiler::rng::Rng;
use serde_json::json;

fn tools() -> Vec<Tool> {
    let parameters = json!({
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "units": {"enum": ["metric", "imperial"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "either": {"type": ["string", "number"]},
        },
        "required": ["city"],
    });
    vec![Tool { name: "weather".into(), description: None, parameters }]
}

/// Merges neighbouring texts, which depend on where the text was cut.
fn merged(events: Vec<Event>) -> Vec<Event> {
    let mut out = vec![];
    for event in events {
        match event {
            Event::Text(text) => text_event(text, &mut out),
            call => out.push(call),
        }
    }
    out
}

fn whole(form: Form, text: &str) -> Vec<Event> {
    let mut parser = Parser::new(form, tools());
    let mut out = vec![];
    parser.push(text, &mut out);
    parser.finish(&mut out);
    merged(out)
}

fn in_pieces(form: Form, text: &str, rng: &mut Rng, one_in: usize) -> Vec<Event> {
    let mut parser = Parser::new(form, tools());
    let (mut out, mut piece) = (vec![], String::new());
    for c in text.chars() {
        piece.push(c);
        if rng.one_in(one_in) {
            parser.push(&piece, &mut out);
            piece.clear();
        }
    }
    parser.push(&piece, &mut out);
    parser.finish(&mut out);
    merged(out)
}

/// Text as it is, calls as `[name arguments]`; the same however the text is cut.
fn check(form: Form, text: &str, expected: &str) {
    let events = whole(form, text);
    let shown: String = events
        .iter()
        .map(|e| match e {
            Event::Text(text) => text.clone(),
            Event::Call(call) => format!("[{} {}]", call.name, call.arguments),
        })
        .collect();
    assert_eq!(shown, expected, "{text:?}");
    let mut rng = Rng::new(text.len() as u64);
    for round in 0..20 {
        assert_eq!(in_pieces(form, text, &mut rng, 1 + round % 4), events, "{text:?} in round {round}");
    }
}

#[test]
fn glm_calls() {
    let check = |text, expected| check(Form::Glm, text, expected);
    check(
        "Let me see.\n<tool_call>weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>",
        r#"Let me see.[weather {"city":"Paris"}]"#,
    );
    check(
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>12</arg_value>\n<arg_key>days</arg_key>\n<arg_value>12</arg_value>\n</tool_call>",
        r#"[weather {"city":"12","days":12}]"#,
    );
    check(
        "<tool_call>weather<arg_key>tags</arg_key><arg_value>[\"a\"]</arg_value><arg_key>limit</arg_key><arg_value>null</arg_value><arg_key>units</arg_key><arg_value>metric</arg_value></tool_call>\n<tool_call>now</tool_call>\n",
        r#"[weather {"tags":["a"],"limit":null,"units":"metric"}][now {}]"#,
    );
    check(
        "<tool_call>weather<arg_key>either</arg_key><arg_value>1.5</arg_value><arg_key>new</arg_key><arg_value>{\"a\": 1}</arg_value></tool_call>",
        r#"[weather {"either":1.5,"new":{"a":1}}]"#,
    );
    // The closing tag inside a value is the value's.
    check(
        "<tool_call>weather<arg_key>city</arg_key><arg_value>a</tool_call>b</arg_value></tool_call>!",
        r#"[weather {"city":"a</tool_call>b"}]!"#,
    );
}

#[test]
fn hermes_calls() {
    let check = |text, expected| check(Form::Hermes, text, expected);
    check(
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>\n<tool_call>{\"name\": \"now\"}</tool_call> done",
        r#"[weather {"city":"Rome"}][now {}] done"#,
    );
    check(
        r#"<tool_call>{"name": "weather", "arguments": "{\"city\": \"</tool_call>\"}"}</tool_call>"#,
        r#"[weather {"city":"</tool_call>"}]"#,
    );
}

#[test]
fn deepseek_calls() {
    let v3 = "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Oslo\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    check(Form::DeepSeek, v3, r#"I look.[weather {"city":"Oslo"}][now {}]"#);
    let v31 = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Oslo\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    check(Form::DeepSeekPlain, v31, r#"[weather {"city":"Oslo"}]"#);
    check(Form::DeepSeek, v31, r#"[weather {"city":"Oslo"}]"#);
}

#[test]
fn what_is_malformed_is_text() {
    for text in [
        "<tool_call></tool_call>",
        "<tool_call>weather<arg_key>city</arg_key>x</tool_call>",
        "<tool_call>weather<arg_key>city</arg_key><arg_value>Paris",
        "a <tool_call>{\"name\": 1}</tool_call> b",
        "<tool_call",
        "1 < 2 and <tool_calls>",
    ] {
        check(Form::Glm, text, text);
    }
    for text in [
        "<tool_call>{\"name\": \"a b\"}</tool_call>",
        "<tool_call>{\"name\": \"a\", \"arguments\": 3}</tool_call>",
        "<tool_call>{\"name\": \"a\" \"arguments\": {}}</tool_call> and on",
        "<tool_call>{\"name\": \"a\"</tool_call> and on",
        "<tool_call>weather</tool_call>",
    ] {
        check(Form::Hermes, text, text);
    }
    check(
        Form::DeepSeek,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>x<｜tool▁call▁end｜>",
        "<｜tool▁call▁begin｜>x<｜tool▁call▁end｜>",
    );
}

#[test]
fn white_space_is_text_only_where_text_is() {
    check(Form::Glm, " \n a \n", " \n a \n");
    check(Form::Glm, "\n\n<tool_call>now</tool_call>\n\n", "[now {}]");
    check(Form::Glm, "a\n<tool_call>now</tool_call>\nb\n", "a[now {}]\nb");
}

#[test]
fn any_mixture_of_tags_is_the_same_however_it_is_cut() {
    let parts = [
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "weather",
        "city",
        "{\"name\": \"now\", \"arguments\": {}}",
        "{\"a\":",
        "\"",
        "}",
        "\n",
        " ",
        "é",
        "<",
        "function",
        "```json",
        "```",
        CALLS_BEGIN,
        CALLS_END,
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        SEPARATOR,
    ];
    let mut rng = Rng::new(5);
    for round in 0..3000 {
        let n = rng.below(14);
        let text: String = (0..n).map(|_| *rng.choose(&parts)).collect();
        for form in [Form::Glm, Form::Hermes, Form::DeepSeek, Form::DeepSeekPlain] {
            let expected = whole(form, &text);
            assert_eq!(in_pieces(form, &text, &mut rng, 1), expected, "{form:?} {text:?} in round {round}");
            assert_eq!(in_pieces(form, &text, &mut rng, 3), expected, "{form:?} {text:?} in round {round}");
        }
    }
}

#[test]
fn forms_by_template() {
    let form = Form::of_template;
    assert_eq!(form("..<tool_call>{n}<arg_key>k</arg_key>"), Some(Form::Glm));
    assert_eq!(form("<tool_call>\\n{\"name\""), Some(Form::Hermes));
    assert_eq!(form("<｜tool▁call▁begin｜>' + type + '<｜tool▁sep｜>x```json"), Some(Form::DeepSeek));
    assert_eq!(form("<｜tool▁call▁begin｜>name<｜tool▁sep｜>"), Some(Form::DeepSeekPlain));
    assert_eq!(form("{{ messages }}"), None);
    assert_eq!(tag("<｜tool▁sep｜>".as_bytes()), Some("<｜tool▁sep｜>"));
    assert_eq!((tag(b"<think>"), tag(b"<thin"), tag(b"")), (Some("<think>"), None, None));
}
