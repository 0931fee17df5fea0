//! Recorded prompts for the templates in `data/chat`.

use llm::template::Template;
use serde_json::Value;
use std::path::Path;

#[test]
fn recorded_prompts() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/chat");
    let mut seen = 0;
    for name in ["deepseek-v2", "glm-4.7-flash", "qwen2.5", "smollm2"] {
        let source = std::fs::read_to_string(data.join(format!("{name}.jinja"))).unwrap();
        let template = Template::new(&source).unwrap();
        let text = std::fs::read_to_string(data.join(format!("{name}.json"))).unwrap();
        let file: Value = serde_json::from_str(&text).unwrap();
        for case in file["cases"].as_array().unwrap() {
            let mut arguments = case["arguments"].as_object().unwrap().clone();
            for token in ["bos_token", "eos_token"] {
                arguments.insert(token.into(), file[token].clone());
            }
            let got = template.render(&case["messages"], &arguments).unwrap();
            assert_eq!(got, case["expected"].as_str().unwrap(), "{name}: {}", case["name"]);
            seen += 1;
        }
    }
    assert!(seen >= 30, "{seen} cases");
}
