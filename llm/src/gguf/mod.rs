//! Model files. In: a GGUF file of version 2 or 3, or several parts of one. Out: its metadata, and tensors whose bytes are
//! read where they are mapped.
//!
//! What was opened is sound: every tensor lies inside its file, apart from all others, and has whole blocks in its rows.

mod parse;
#[cfg(test)]
mod tests;
mod value;
mod write;

pub use value::{Array, Strings, Value};
pub use write::{header, write_gguf};

use compiler::quant::Format;
use parse::Parsed;
use runtime::map::Mapped;
use std::borrow::Cow;
use std::fmt::{self, Display};
use std::io;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};

#[derive(thiserror::Error, Debug)]
pub enum Error {
    #[error("{file}: {error}")]
    Io { file: String, error: io::Error },

    #[error("{file}: {field}: expected {expected}, found {found}")]
    Invalid { file: String, field: String, expected: String, found: String },

    #[error("{file}: the metadata has no {key}, which should be {expected}")]
    Missing { file: String, key: String, expected: &'static str },

    #[error(
        "{file}: the disk is full: {bytes} bytes are needed; what was written is removed, free some space"
    )]
    Full { file: String, bytes: u64 },

    #[error("{file}: part {part} of {count} is missing; put it beside {first}")]
    Part { file: String, part: usize, count: usize, first: String },
}

/// One model, possibly of several files.
pub struct Gguf {
    name: String,
    metadata: Vec<(String, Value)>,
    tensors: Vec<TensorInfo>,
    /// Places in `metadata` and `tensors`, by name.
    keys: Vec<usize>,
    names: Vec<usize>,
    data: Data,
}

enum Data {
    /// Of each part.
    Files(Vec<Bytes>),
    Made(Maker),
}

/// Any range of a tensor's bytes; ranges that overlap must agree.
pub(crate) type Maker = Box<dyn Fn(&TensorInfo, Range<usize>) -> Vec<u8> + Send + Sync>;

enum Bytes {
    Memory(Cow<'static, [u8]>),
    Mapped(Mapped),
}

/// A tensor of the file.
#[derive(Clone)]
pub struct TensorInfo {
    pub name: String,
    pub format: &'static Format,
    /// Outermost first, as numpy would print it: GGUF's order reversed.
    pub dims: Vec<i64>,
    bytes: usize,
    /// Which of the files, and the place in it.
    part: usize,
    at: usize,
}

impl TensorInfo {
    /// Of all its data.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
    pub fn elements(&self) -> i64 {
        self.dims.iter().product()
    }
}

impl Gguf {
    /// Maps the file. One part of a split model (`NAME-00001-of-00003.gguf`) brings the others with it.
    pub fn open(path: &Path) -> Result<Gguf, Error> {
        let (bytes, parsed) = open_part(path, 0)?;
        let name = path.display().to_string();
        let Some((no, count)) = split(&name, &parsed)? else {
            return Gguf::new(name, parsed, Data::Files(vec![bytes]));
        };
        let siblings = siblings(path, no, count)?;
        let (bytes, mut parsed) = if no == 0 { (bytes, parsed) } else { open_part(&siblings[0], 0)? };
        let mut parts = vec![bytes];
        let first = siblings[0].display().to_string();
        check_part(&first, &parsed, 0, count)?;
        for (i, path) in siblings.iter().enumerate().skip(1) {
            if !path.exists() {
                let file = path.display().to_string();
                return Err(Error::Part { file, part: i + 1, count, first });
            }
            let (bytes, part) = open_part(path, i)?;
            check_part(&path.display().to_string(), &part, i, count)?;
            parts.push(bytes);
            parsed.tensors.extend(part.tensors);
        }
        if let Some(total) = find_int(&first, &parsed, "split.tensors.count")?
            && total != parsed.tensors.len() as i64
        {
            let found = format!("{} in the {count} parts", parsed.tensors.len());
            return Err(invalid(&first, "split.tensors.count", format!("{total} tensors"), found));
        }
        Gguf::new(first, parsed, Data::Files(parts))
    }

    /// A model that is part of the program; `name` stands for the path in messages.
    pub fn from_static(name: &str, bytes: &'static [u8]) -> Result<Gguf, Error> {
        Gguf::in_memory(name, Cow::Borrowed(bytes))
    }
    pub fn from_vec(name: &str, bytes: Vec<u8>) -> Result<Gguf, Error> {
        Gguf::in_memory(name, Cow::Owned(bytes))
    }
    fn in_memory(name: &str, bytes: Cow<'static, [u8]>) -> Result<Gguf, Error> {
        let parsed = parse::parse(name, &bytes, 0)?;
        if let Some((_, count)) = split(name, &parsed)? {
            return Err(invalid(name, "split.count", "1", count));
        }
        Gguf::new(name.into(), parsed, Data::Files(vec![Bytes::Memory(bytes)]))
    }
    /// A model without a file. `tensors` are names, formats and dimensions with whole blocks in their rows.
    pub(crate) fn made(
        name: &str,
        metadata: Vec<(String, Value)>,
        tensors: Vec<(String, &'static Format, Vec<i64>)>,
        make: Maker,
    ) -> Result<Gguf, Error> {
        let tensor = |(name, format, dims): (String, &'static Format, Vec<i64>)| {
            let bytes = write::data_bytes(format, &dims) as usize;
            TensorInfo { name, format, dims, bytes, part: 0, at: 0 }
        };
        let tensors = tensors.into_iter().map(tensor).collect();
        Gguf::new(name.into(), Parsed { metadata, tensors }, Data::Made(make))
    }

    fn new(name: String, parsed: Parsed, data: Data) -> Result<Gguf, Error> {
        let Parsed { metadata, tensors } = parsed;
        let keys = by_name(&metadata, |(key, _)| key);
        let names = by_name(&tensors, |t| &t.name);
        let keys = keys.map_err(|key| invalid(&name, format!("key {key}"), "one value", "several"))?;
        let names = names
            .map_err(|tensor| invalid(&name, format!("tensor {tensor}"), "one of that name", "several"))?;
        Ok(Gguf { name, metadata, tensors, keys, names, data })
    }

    /// The path, or what stands for it.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn value(&self, key: &str) -> Option<&Value> {
        let place = self.keys.binary_search_by(|&i| self.metadata[i].0.as_str().cmp(key)).ok()?;
        Some(&self.metadata[self.keys[place]].1)
    }
    /// In the file's order.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &Value)> + Clone {
        self.metadata.iter().map(|(key, value)| (key.as_str(), value))
    }
    pub fn architecture(&self) -> Result<&str, Error> {
        self.text("general.architecture")
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let found = || match value {
            Value::Array(a) => format!("an array of {} {}", a.len(), a.type_name()),
            Value::String(s) => format!("the string {:?}", s.chars().take(40).collect::<String>()),
            other => format!("{other} ({})", other.type_name()),
        };
        read(value).map(Some).ok_or_else(|| invalid(&self.name, key, expected, found()))
    }
    fn required<T>(&self, key: &str, expected: &'static str, value: Option<T>) -> Result<T, Error> {
        let missing = || Error::Missing { file: self.name.clone(), key: key.into(), expected };
        value.ok_or_else(missing)
    }

    /// An integer of any width.
    pub fn opt_int(&self, key: &str) -> Result<Option<i64>, Error> {
        self.typed(key, AN_INT, Value::as_int)
    }
    pub fn int(&self, key: &str) -> Result<i64, Error> {
        self.required(key, AN_INT, self.opt_int(key)?)
    }
    pub fn opt_float(&self, key: &str) -> Result<Option<f32>, Error> {
        self.typed(key, A_FLOAT, Value::as_float)
    }
    pub fn float(&self, key: &str) -> Result<f32, Error> {
        self.required(key, A_FLOAT, self.opt_float(key)?)
    }
    /// A finite number of any type.
    pub fn opt_number(&self, key: &str) -> Result<Option<f64>, Error> {
        let number = |v: &Value| v.as_float().map(f64::from).or(v.as_int().map(|v| v as f64));
        self.typed(key, "a number", |v| number(v).filter(|n| n.is_finite()))
    }
    pub fn opt_text(&self, key: &str) -> Result<Option<&str>, Error> {
        self.typed(key, A_STRING, Value::as_text)
    }
    pub fn text(&self, key: &str) -> Result<&str, Error> {
        self.required(key, A_STRING, self.opt_text(key)?)
    }
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.typed(key, "a bool", Value::as_bool)
    }
    pub fn opt_strings(&self, key: &str) -> Result<Option<Vec<&str>>, Error> {
        Ok(self.typed(key, STRINGS, Value::as_strings)?.map(|s| s.iter().collect()))
    }
    pub fn strings(&self, key: &str) -> Result<Vec<&str>, Error> {
        self.required(key, STRINGS, self.opt_strings(key)?)
    }
    /// An array of integers; one integer is an array of one.
    pub fn opt_ints(&self, key: &str) -> Result<Option<Vec<i64>>, Error> {
        self.typed(key, "an integer or an array of integers", Value::as_ints)
    }
    /// An array of floats; one float is an array of one.
    pub fn opt_floats(&self, key: &str) -> Result<Option<Vec<f32>>, Error> {
        self.typed(key, "a float or an array of floats", Value::as_floats)
    }

    /// In the file's order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let place = self.names.binary_search_by(|&i| self.tensors[i].name.as_str().cmp(name)).ok()?;
        Some(&self.tensors[self.names[place]])
    }
    /// Bytes `range` of a tensor's data: borrowed where they are mapped, made where the model is synthetic.
    pub fn bytes(&self, t: &TensorInfo, range: Range<usize>) -> Result<Cow<'_, [u8]>, Error> {
        if range.start > range.end || range.end > t.bytes {
            let expected = format!("a range of its {} bytes", t.bytes);
            return Err(invalid(
                &self.name,
                format!("data of tensor {}", t.name),
                expected,
                format!("{range:?}"),
            ));
        }
        Ok(match &self.data {
            Data::Files(parts) => Cow::Borrowed(&parts[t.part][t.at + range.start..t.at + range.end]),
            Data::Made(make) => Cow::Owned(make(t, range)),
        })
    }
    /// The file that holds bytes `range` of a tensor's data, and where, if it is mapped.
    pub fn mapped(&self, t: &TensorInfo, range: Range<usize>) -> Option<(&Mapped, Range<usize>)> {
        let Data::Files(parts) = &self.data else { return None };
        let Bytes::Mapped(map) = &parts[t.part] else { return None };
        Some((map, t.at + range.start.min(t.bytes)..t.at + range.end.min(t.bytes)))
    }
    /// These bytes will be wanted soon: the system may read them meanwhile.
    pub fn fetch(&self, t: &TensorInfo, range: Range<usize>) {
        if let Some((map, range)) = self.mapped(t, range) {
            map.fetch(range);
        }
    }
    /// The system may drop these pages from memory: they will not be read again soon.
    pub fn release(&self, t: &TensorInfo, range: Range<usize>) {
        if let Some((map, range)) = self.mapped(t, range) {
            map.release(range);
        }
    }
    /// Of all tensors' data.
    pub fn bytes_total(&self) -> u64 {
        self.tensors.iter().map(|t| t.bytes as u64).sum()
    }
}

const AN_INT: &str = "an integer";
const A_FLOAT: &str = "a float";
const A_STRING: &str = "a string";
const STRINGS: &str = "an array of strings";

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Memory(bytes) => bytes,
            Bytes::Mapped(map) => map,
        }
    }
}

impl fmt::Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: {} keys, {} tensors", self.name, self.metadata.len(), self.tensors.len())
    }
}
impl fmt::Debug for TensorInfo {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} {}{:?}", self.name, self.format.name, self.dims)
    }
}

fn invalid(file: &str, field: impl Display, expected: impl Display, found: impl Display) -> Error {
    Error::Invalid {
        file: file.into(),
        field: field.to_string(),
        expected: expected.to_string(),
        found: found.to_string(),
    }
}

/// Places in order of name, or a name that occurs twice.
fn by_name<T>(of: &[T], name: impl Fn(&T) -> &String) -> Result<Vec<usize>, String> {
    let mut places: Vec<usize> = (0..of.len()).collect();
    places.sort_unstable_by_key(|&i| name(&of[i]));
    match places.windows(2).find(|pair| name(&of[pair[0]]) == name(&of[pair[1]])) {
        Some(pair) => Err(name(&of[pair[0]]).clone()),
        None => Ok(places),
    }
}

fn open_part(path: &Path, part: usize) -> Result<(Bytes, Parsed), Error> {
    let file = path.display().to_string();
    let map = Mapped::open(path).map_err(|error| Error::Io { file: file.clone(), error })?;
    let parsed = parse::parse(&file, &map, part)?;
    Ok((Bytes::Mapped(map), parsed))
}

fn find_int(file: &str, parsed: &Parsed, key: &str) -> Result<Option<i64>, Error> {
    let Some((_, value)) = parsed.metadata.iter().find(|(k, _)| k == key) else { return Ok(None) };
    let found = || invalid(file, key, AN_INT, format!("{value} ({})", value.type_name()));
    value.as_int().map(Some).ok_or_else(found)
}

/// As many as the five digits of a part's name can count.
const MAX_PARTS: i64 = 99_999;

/// A part's number, from 0, and the number of parts; none where there is but one.
fn split(file: &str, parsed: &Parsed) -> Result<Option<(usize, usize)>, Error> {
    let count = find_int(file, parsed, "split.count")?.unwrap_or(1);
    if count <= 1 {
        return Ok(None);
    }
    if count > MAX_PARTS {
        return Err(invalid(file, "split.count", format!("at most {MAX_PARTS}"), count));
    }
    let no = find_int(file, parsed, "split.no")?.unwrap_or(0);
    if !(0..count).contains(&no) {
        return Err(invalid(file, "split.no", format!("0 to {}", count - 1), no));
    }
    Ok(Some((no as usize, count as usize)))
}

fn check_part(file: &str, parsed: &Parsed, no: usize, count: usize) -> Result<(), Error> {
    match split(file, parsed)? {
        Some((n, c)) if c != count => Err(invalid(file, "split.count", count, format!("{c} (split.no {n})"))),
        Some((n, _)) if n != no => Err(invalid(file, "split.no", no, n)),
        Some(_) => Ok(()),
        None => Err(invalid(file, "split.count", count, "1")),
    }
}

/// The paths of all parts, from that of one.
fn siblings(path: &Path, no: usize, count: usize) -> Result<Vec<PathBuf>, Error> {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let ending = |i: usize| format!("-{:05}-of-{count:05}.gguf", i + 1);
    let Some(stem) = name.strip_suffix(&ending(no)) else {
        let file = path.display().to_string();
        let found = format!("{name:?}; rename it as it was published");
        return Err(invalid(&file, "file name", format!("one ending in {:?}", ending(no)), found));
    };
    Ok((0..count).map(|i| path.with_file_name(format!("{stem}{}", ending(i)))).collect())
}
