//! Chat templates: messages in, the prompt's text out, byte for byte as Python's jinja2 with the settings of Hugging
//! Face's `transformers` writes it. A template is not trusted: its steps, its nesting and its output are bounded.

mod python;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Serde, Value, ValueKind};
use minijinja::{Environment, ErrorKind, Output, State};
use serde_json::{Map, Value as Json};
use std::io::{self, Write};

/// Instructions that a template may execute; published ones need some thousands.
const STEPS: u64 = 20_000_000;
/// Bytes that a template may write.
const OUTPUT: usize = 256 << 20;
/// Nested calls of macros, each with the cost that minijinja gives it, on a stack of two MiB.
const DEPTH: usize = 200;
const NAME: &str = "chat template";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("chat template, line {line}: {message}")]
    Template { line: usize, message: String },
    #[error("the chat template needs more than {STEPS} steps; it may never end")]
    Steps,
    #[error("the chat template writes more than {OUTPUT} bytes")]
    Output,
}

impl Error {
    fn of(e: minijinja::Error) -> Error {
        let mut cause: &minijinja::Error = &e;
        while let Some(deeper) = std::error::Error::source(cause).and_then(|s| s.downcast_ref()) {
            cause = deeper;
        }
        match cause.kind() {
            ErrorKind::OutOfFuel => Error::Steps,
            ErrorKind::WriteFailure => Error::Output,
            kind => {
                let line = cause.line().or(e.line()).unwrap_or(1);
                let detail = cause.detail().unwrap_or("");
                let message = match kind {
                    ErrorKind::InvalidOperation if !detail.is_empty() => detail.to_string(),
                    _ if detail.is_empty() => kind.to_string(),
                    _ => format!("{kind}: {detail}"),
                };
                Error::Template { line, message }
            }
        }
    }
}

pub struct Template {
    environment: Environment<'static>,
}

impl Template {
    pub fn new(source: &str) -> Result<Template, Error> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(Error::of)?);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_fuel(Some(STEPS));
        environment.set_recursion_limit(DEPTH);
        environment.set_formatter(write_value);
        environment.set_unknown_method_callback(python::method);
        environment.add_filter("tojson", python::tojson);
        environment.add_filter("string", |v: &Value| python::text(v));
        environment.add_filter("indent", python::indent);
        environment.add_filter("length", python::length);
        environment.add_filter("count", python::length);
        environment.add_test("iterable", |v: &Value| !v.is_none() && v.try_iter().is_ok());
        environment.add_test("sequence", |v: &Value| {
            matches!(v.kind(), ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map)
        });
        environment.add_test("number", |v: &Value| matches!(v.kind(), ValueKind::Number | ValueKind::Bool));
        environment.add_function("raise_exception", raise_exception);
        environment
            .add_function("strftime_now", |format: &str| python::strftime(format, python::seconds_now()));
        environment.add_template_owned(NAME, without_generation_tags(source)).map_err(Error::of)?;
        Ok(Template { environment })
    }

    /// The prompt for `messages`; `arguments` are the template's other variables, `bos_token` and `eos_token` among them.
    /// What is absent is undefined.
    pub fn render(&self, messages: &Json, arguments: &Map<String, Json>) -> Result<String, Error> {
        let others = arguments.iter().map(|(name, value)| (name.as_str(), Value::from(Serde(value))));
        let context = Value::from_pairs(others.chain([("messages", Value::from(Serde(messages)))]));
        let mut out = Limited(Vec::new());
        let template = self.environment.get_template(NAME).map_err(Error::of)?;
        template.render_captured_to(context, &mut out).map_err(Error::of)?;
        Ok(String::from_utf8_lossy(&out.0).into_owned())
    }
}

/// Output that ends with an error when it grows too long.
struct Limited(Vec<u8>);

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > OUTPUT {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_value(out: &mut Output, _: &mut State, value: &Value) -> Result<(), minijinja::Error> {
    if let Some(text) = value.as_str() {
        return out.write_str(text).map_err(minijinja::Error::from);
    }
    out.write_str(&python::text(value)).map_err(minijinja::Error::from)
}

fn raise_exception(message: Rest<Value>) -> Result<String, minijinja::Error> {
    let message: String = message.iter().map(python::text).collect();
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, format!("the template refuses: {message}")))
}

/// `{% generation %}` and its end mark what a model said for training; they print nothing and nest like an `if`.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |e| e + 2);
        let (tag, after) = tag.split_at(end);
        let word = tag.trim_matches(['{', '}', '%', '-', '+', ' ', '\t', '\r', '\n']);
        match word {
            "generation" => out.push_str(&tag.replace(word, "if true")),
            "endgeneration" => out.push_str(&tag.replace(word, "endif")),
            _ => {
                out.push_str("{%");
                rest = &rest[at + 2..];
                continue;
            }
        }
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(source: &str) -> Result<String, Error> {
        let arguments =
            json!({"a": 1, "f": [1.0, 1e16, 1.5e-7, 0.0001], "s": "it's", "m": {"b": null, "a": true}});
        Template::new(source)?.render(&json!([]), arguments.as_object().unwrap())
    }

    fn check(source: &str, expected: &str) {
        assert_eq!(render(source).unwrap(), expected, "{source}");
    }

    #[test]
    fn prints_like_python() {
        check(
            "{{ f }} {{ m }} {{ none }} {{ true }} {{ s }} {{ [s] }}{{ nothing }}",
            concat!("[1.0, 1e+16, 1.5e-07, 0.0001] {'b': None, 'a': True} None True it's [\"it's\"]"),
        );
        check("{{ ['a\\n\\\\'] }}", "['a\\n\\\\']");
        check("{{ (1, 'x')|string + '!' }}", "(1, 'x')!");
    }

    #[test]
    fn writes_json_like_python() {
        check("{{ m | tojson }}", r#"{"b": null, "a": true}"#);
        check("{{ m | tojson(indent=2) }}", "{\n  \"b\": null,\n  \"a\": true\n}");
        check("{{ m | tojson(sort_keys=true, separators=(',', ':')) }}", r#"{"a":true,"b":null}"#);
        check("{{ ['é\"\\t</', {}, []] | tojson }}", "[\"é\\\"\\t</\", {}, []]");
        check("{{ ['é😀'] | tojson(ensure_ascii=true, indent=1) }}", "[\n \"\\u00e9\\ud83d\\ude00\"\n]");
        check("{{ f | tojson }}", "[1.0, 1e+16, 1.5e-07, 0.0001]");
    }

    #[test]
    fn whitespace() {
        check("a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc");
        check("{%- generation -%} x {%- endgeneration %}\ny\n\n", "xy\n");
    }

    #[test]
    fn python_methods() {
        check("{{ 'a,b,c'.rsplit(',', 1) }}", "['a,b', 'c']");
        check("{{ 'a,b'.partition(',')[2] }}{{ 'ab'.removeprefix('a') }}{{ ' x '.strip() }}", "bbx");
        check("{% for x in [1,2,3][::-1] %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "32");
        check("{{ m.items() | list }}{{ m.get('z', 3) }}", "[('b', None), ('a', True)]3");
        check("{{ 'x' is sequence }}{{ m is iterable }}{{ true is number }}", "TrueTrueTrue");
        check("{{ none is iterable }}{{ nothing | length }}", "False0");
        check(
            "{{ 'a\n\nb\n'|indent(2, first=true) }}|{{ 'a\n\nb'|indent(1, blank=true) }}",
            "  a\n\n  b\n|a\n \n b",
        );
        check("{{ 'abc'.index('c') }}{{ 'x'.zfill(3) }}", "200x");
    }

    #[test]
    fn errors_name_the_line() {
        let error = |source| render(source).unwrap_err().to_string();
        assert_eq!(
            error("a\n{{ raise_exception('No') }}"),
            "chat template, line 2: the template refuses: No"
        );
        assert!(error("a\n\n{{ 1 | nofilter }}").starts_with("chat template, line 3: unknown filter"));
        assert!(error("a\n{% if %}").starts_with("chat template, line 2: syntax error"));
        assert!(
            error("{% macro m() %}\n{{ a.b.c }}{% endmacro %}\n{{ m() }}")
                .starts_with("chat template, line 2: ")
        );
    }

    #[test]
    fn hostile_templates_end() {
        let many = "{% for a in range(9999) %}".repeat(3) + &"{% endfor %}".repeat(3);
        assert!(matches!(render(&many), Err(Error::Steps)));
        let deep = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
        assert!(matches!(render(deep), Err(Error::Template { .. })));
        let nested = format!("{{{{ {}1{} }}}}", "(".repeat(5000), ")".repeat(5000));
        assert!(matches!(render(&nested), Err(Error::Template { .. })));
        let long = "{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}{% for a in range(14) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{% for a in range(9999) %}{{ ns.s }}{% endfor %}";
        assert!(matches!(render(long), Err(Error::Output)));
    }
}
