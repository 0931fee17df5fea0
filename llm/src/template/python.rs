//! What templates expect of Python: how values print, `json.dumps`, methods of strings, and dates.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// `str(value)`
pub fn text(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.into(),
        None => repr(value),
    }
}

/// `repr(value)`, but nothing for what is undefined.
fn repr(value: &Value) -> String {
    match value.kind() {
        ValueKind::Number if !value.is_integer() => {
            f64::try_from(value.clone()).map_or(value.to_string(), float)
        }
        ValueKind::String => quoted(value.as_str().unwrap_or("")),
        ValueKind::Map => {
            let items = value.as_object().and_then(|o| o.try_iter_pairs()).into_iter().flatten();
            let items: Vec<String> = items.map(|(k, v)| format!("{}: {}", repr(&k), repr(&v))).collect();
            format!("{{{}}}", items.join(", "))
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<String> = value.try_iter().into_iter().flatten().map(|v| repr(&v)).collect();
            match (value.is_tuple(), items.len()) {
                (true, 1) => format!("({},)", items[0]),
                (true, _) => format!("({})", items.join(", ")),
                (false, _) => format!("[{}]", items.join(", ")),
            }
        }
        _ => value.to_string(),
    }
}

/// The shortest digits that give the number back, with an exponent below 1e-4 and from 1e16.
fn float(x: f64) -> String {
    if !x.is_finite() {
        return if x.is_nan() { "nan".into() } else { x.to_string() };
    }
    let digits = format!("{x:e}");
    let (mantissa, exponent) = digits.split_once('e').unwrap_or((&digits, "0"));
    match exponent.parse::<i32>() {
        Ok(e) if !(-4..16).contains(&e) => {
            format!("{mantissa}e{}{:02}", if e < 0 { '-' } else { '+' }, e.abs())
        }
        _ => format!("{x:?}"),
    }
}

fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if c != ' ' && (c.is_control() || c.is_whitespace()) => {
                let n = c as u32;
                let _ = if n < 256 { write!(out, "\\x{n:02x}") } else { write!(out, "\\u{n:04x}") };
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// How many there are: none of what is undefined.
pub fn length(value: &Value) -> Result<usize, Error> {
    match value.len() {
        Some(n) => Ok(n),
        None if value.is_undefined() => Ok(0),
        None => Err(invalid(format!("length: a value of type {} has none", value.kind()))),
    }
}

/// Jinja's `indent`: a line break at the end stays, and empty lines are indented only with `blank`.
pub fn indent(
    text: &str,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let option = |given: Option<bool>, name: &str| match given {
        Some(given) => Ok(given),
        None => options.get::<Option<bool>>(name).map(Option::unwrap_or_default),
    };
    let width = match width {
        Some(width) => Some(width),
        None => options.get::<Option<Value>>("width")?,
    };
    let width = match width.map(|w| (w.as_str().map(str::to_string), w.as_i64())) {
        Some((Some(text), _)) => text,
        Some((None, Some(n))) => " ".repeat(n.clamp(0, 1 << 10) as usize),
        Some(_) => return Err(invalid("indent: width must be a number or a text")),
        None => " ".repeat(4),
    };
    let (first, blank) = (option(first, "first")?, option(blank, "blank")?);
    options.assert_all_used()?;
    let mut out = String::new();
    for (i, line) in text.split('\n').enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if if i == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&width);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// `json.dumps` with `ensure_ascii=False` unless told otherwise.
pub fn tojson(
    value: &Value,
    ensure_ascii: Option<bool>,
    indent: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get::<Option<Value>>("indent")?,
    };
    let indent = match indent.filter(|i| !i.is_none() && !i.is_undefined()) {
        Some(i) => Some(match (i.as_str(), i.as_i64()) {
            (Some(text), _) => text.to_string(),
            (_, Some(n)) => " ".repeat(n.clamp(0, 64) as usize),
            _ => return Err(invalid("tojson: indent must be a number or a text")),
        }),
        None => None,
    };
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    let (comma, colon) = match separators.as_deref() {
        Some([comma, colon]) => (comma.clone(), colon.clone()),
        Some(_) => return Err(invalid("tojson: separators must be two texts")),
        None => (if indent.is_some() { "," } else { ", " }.into(), ": ".into()),
    };
    let ascii = match ensure_ascii {
        Some(ascii) => ascii,
        None => options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    let sort = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut json = Json { out: String::new(), indent, comma, colon, ascii, sort };
    json.value(value, 0)?;
    Ok(Value::from(json.out))
}

struct Json {
    out: String,
    indent: Option<String>,
    comma: String,
    colon: String,
    ascii: bool,
    sort: bool,
}

impl Json {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&repr(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or("")),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.items('[', ']', items, depth, |json, item| json.value(&item, depth + 1))?;
            }
            ValueKind::Map => {
                let pairs = value.as_object().and_then(|o| o.try_iter_pairs()).into_iter().flatten();
                let mut pairs: Vec<(String, Value)> = pairs.map(|(k, v)| (key(&k), v)).collect();
                if self.sort {
                    pairs.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.items('{', '}', pairs, depth, |json, (key, item)| {
                    json.string(&key);
                    json.out.push_str(&json.colon.clone());
                    json.value(&item, depth + 1)
                })?;
            }
            kind => return Err(invalid(format!("tojson: {kind} has no JSON"))),
        }
        Ok(())
    }

    fn items<T>(
        &mut self,
        open: char,
        close: char,
        items: Vec<T>,
        depth: usize,
        mut one: impl FnMut(&mut Json, T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        let any = !items.is_empty();
        for (i, item) in items.into_iter().enumerate() {
            if i > 0 {
                self.out.push_str(&self.comma);
            }
            self.line(depth + 1);
            one(self, item)?;
        }
        if any {
            self.line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out.push_str(&indent.repeat(depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ascii && c > '\u{7e}') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

fn key(value: &Value) -> String {
    match value.kind() {
        ValueKind::None => "null".into(),
        ValueKind::Bool => value.is_true().to_string(),
        _ => text(value),
    }
}

/// Methods of Python's strings, lists and dicts.
pub fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    use minijinja::value::from_args;
    let Some(s) = value.as_str() else {
        return minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args);
    };
    match name {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(s.strip_prefix(prefix).unwrap_or(s)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(s.strip_suffix(suffix).unwrap_or(s)))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let found = if name == "partition" { s.split_once(separator) } else { s.rsplit_once(separator) };
            let parts = match found {
                Some((before, after)) => [before, separator, after],
                None if name == "partition" => [s, "", ""],
                None => ["", "", s],
            };
            Ok(parts.into_iter().map(Value::from).collect())
        }
        "rsplit" => {
            let (separator, most): (Option<&str>, Option<i64>) = from_args(args)?;
            let most = most.and_then(|n| usize::try_from(n).ok()).map_or(usize::MAX, |n| n.saturating_add(1));
            let mut parts: Vec<&str> = match separator {
                Some("") => return Err(invalid("rsplit: empty separator")),
                Some(separator) => s.rsplitn(most, separator).collect(),
                None if most == usize::MAX => s.split_whitespace().rev().collect(),
                None => return Err(invalid("rsplit: a limit needs a separator")),
            };
            parts.reverse();
            Ok(parts.into_iter().map(Value::from).collect())
        }
        "index" => {
            let (what,): (&str,) = from_args(args)?;
            let at = s.find(what).ok_or_else(|| invalid("index: substring not found"))?;
            Ok(Value::from(s[..at].chars().count()))
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let sign = if s.starts_with(['-', '+']) { 1 } else { 0 };
            let missing = width.min(1 << 16).saturating_sub(s.chars().count());
            Ok(Value::from(format!("{}{}{}", &s[..sign], "0".repeat(missing), &s[sign..])))
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

pub fn seconds_now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64)
}

const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
#[rustfmt::skip]
const MONTHS: [&str; 12] = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
];

/// `strftime` of a time in UTC, given in seconds since 1970.
pub fn strftime(format: &str, seconds: i64) -> Result<String, Error> {
    let (days, time) = (seconds.div_euclid(86400), seconds.rem_euclid(86400));
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    let (year, month, day) = date(days);
    let (month_name, day_name) = (MONTHS[month as usize - 1], DAYS[(days + 3).rem_euclid(7) as usize]);
    let twelve = (hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut code = chars.next();
        let bare = code == Some('-');
        if bare {
            code = chars.next();
        }
        let mut number = |n: i64, width: usize| {
            let width = if bare { 1 } else { width };
            let _ = write!(out, "{n:0width$}");
        };
        match code {
            Some('Y') => number(year, 4),
            Some('y') => number(year.rem_euclid(100), 2),
            Some('m') => number(month, 2),
            Some('d') => number(day, 2),
            Some('H') => number(hour, 2),
            Some('I') => number(twelve, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('j') => number(days - days_before(year, 1, 1) + 1, 3),
            Some('B') => out.push_str(month_name),
            Some('b' | 'h') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(day_name),
            Some('a') => out.push_str(&day_name[..3]),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('F') => out.push_str(&strftime("%Y-%m-%d", seconds)?),
            Some('T') => out.push_str(&strftime("%H:%M:%S", seconds)?),
            Some('Z') => out.push_str("UTC"),
            Some('z') => out.push_str("+0000"),
            Some('%') => out.push('%'),
            _ => return Err(invalid(format!("strftime_now: unknown code in {format:?}"))),
        }
    }
    Ok(out)
}

/// Days from 1970-01-01 to a date of the Gregorian calendar. Years are counted from March, so that leap days come last.
fn days_before(year: i64, month: i64, day: i64) -> i64 {
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    365 * y + y.div_euclid(4) - y.div_euclid(100) + y.div_euclid(400) + (153 * m + 2) / 5 + day - 719469
}

fn date(days: i64) -> (i64, i64, i64) {
    let mut year = 1970 + days.div_euclid(366);
    while days_before(year + 1, 1, 1) <= days {
        year += 1;
    }
    let month = (1..=12).rev().find(|m| days_before(year, *m, 1) <= days).unwrap_or(1);
    (year, month, days - days_before(year, month, 1) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        let all = "%Y-%m-%d %H:%M:%S %A %b %j %I%p %-d %y";
        assert_eq!(strftime(all, 0).unwrap(), "1970-01-01 00:00:00 Thursday Jan 001 12AM 1 70");
        assert_eq!(strftime(all, 1709208000).unwrap(), "2024-02-29 12:00:00 Thursday Feb 060 12PM 29 24");
        assert_eq!(strftime("%d %B %Y", 1735689599).unwrap(), "31 December 2024");
        assert!(strftime("%Q", 0).is_err());
    }
}
