//! What a metadata key holds. Arrays are stored as plain vectors, strings of an array in one text.

use std::fmt;

#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

#[derive(Clone, PartialEq, Debug)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    Strings(Strings),
    /// Arrays of any types.
    Arrays(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// A match with one expression for all types of numbers.
macro_rules! each_number {
    ($on:expr, $of:ident, $v:ident => $does:expr, $($other:pat => $else:expr),* $(,)?) => {
        match $on {
            $of::U8($v) => $does,
            $of::I8($v) => $does,
            $of::U16($v) => $does,
            $of::I16($v) => $does,
            $of::U32($v) => $does,
            $of::I32($v) => $does,
            $of::F32($v) => $does,
            $of::U64($v) => $does,
            $of::I64($v) => $does,
            $of::F64($v) => $does,
            $($other => $else),*
        }
    };
}
pub(super) use each_number;

/// GGUF's names, by GGUF's numbers.
const TYPES: [&str; 13] = [
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "bool", "string", "array", "uint64",
    "int64", "float64",
];

/// Many strings in one allocation.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Strings {
    text: String,
    ends: Vec<usize>,
}

impl Strings {
    /// Strings one behind the other, given where each ends; both back where one is not UTF-8.
    pub(super) fn new(text: Vec<u8>, ends: Vec<usize>) -> Result<Strings, (Vec<u8>, Vec<usize>)> {
        match String::from_utf8(text) {
            Ok(text) if ends.iter().all(|&e| text.is_char_boundary(e)) => Ok(Strings { text, ends }),
            Ok(text) => Err((text.into_bytes(), ends)),
            Err(e) => Err((e.into_bytes(), ends)),
        }
    }
    pub fn push(&mut self, s: &str) {
        self.text.push_str(s);
        self.ends.push(self.text.len());
    }
    pub fn len(&self) -> usize {
        self.ends.len()
    }
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let s = &self.text[start..end];
            start = end;
            s
        })
    }
}

impl<S: AsRef<str>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(iter: I) -> Strings {
        let mut strings = Strings::default();
        iter.into_iter().for_each(|s| strings.push(s.as_ref()));
        strings
    }
}

macro_rules! into_value {
    ($($of:ty => $value:ident),* $(,)?) => { $(
        impl From<$of> for Value {
            fn from(v: $of) -> Value {
                Value::$value(v)
            }
        }
        impl From<Vec<$of>> for Value {
            fn from(v: Vec<$of>) -> Value {
                Value::Array(Array::$value(v))
            }
        }
    )* };
}
into_value! {
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, f32 => F32, bool => Bool, u64 => U64,
    i64 => I64, f64 => F64,
}

impl From<&str> for Value {
    fn from(s: &str) -> Value {
        Value::String(s.into())
    }
}
impl From<Strings> for Value {
    fn from(s: Strings) -> Value {
        Value::Array(Array::Strings(s))
    }
}

impl Value {
    /// The type's number in a file.
    pub(super) fn kind(&self) -> u32 {
        match self {
            Value::U8(_) => 0,
            Value::I8(_) => 1,
            Value::U16(_) => 2,
            Value::I16(_) => 3,
            Value::U32(_) => 4,
            Value::I32(_) => 5,
            Value::F32(_) => 6,
            Value::Bool(_) => 7,
            Value::String(_) => 8,
            Value::Array(_) => 9,
            Value::U64(_) => 10,
            Value::I64(_) => 11,
            Value::F64(_) => 12,
        }
    }
    /// As GGUF names it.
    pub fn type_name(&self) -> &'static str {
        TYPES[self.kind() as usize]
    }

    /// An integer of any width.
    pub fn as_int(&self) -> Option<i64> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::I8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::I16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::I32(v) => Some(v.into()),
            Value::U64(v) => v.try_into().ok(),
            Value::I64(v) => Some(v),
            _ => None,
        }
    }
    pub fn as_float(&self) -> Option<f32> {
        match *self {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        }
    }
    pub fn as_bool(&self) -> Option<bool> {
        if let Value::Bool(v) = *self { Some(v) } else { None }
    }
    pub fn as_text(&self) -> Option<&str> {
        if let Value::String(s) = self { Some(s) } else { None }
    }
    pub fn as_strings(&self) -> Option<&Strings> {
        if let Value::Array(Array::Strings(s)) = self { Some(s) } else { None }
    }
    /// The integers of an array, or the one that stands for all.
    pub fn as_ints(&self) -> Option<Vec<i64>> {
        fn all<T: Copy + Into<i64>>(v: &[T]) -> Option<Vec<i64>> {
            Some(v.iter().map(|&x| x.into()).collect())
        }
        match self {
            Value::Array(Array::U8(v)) => all(v),
            Value::Array(Array::I8(v)) => all(v),
            Value::Array(Array::U16(v)) => all(v),
            Value::Array(Array::I16(v)) => all(v),
            Value::Array(Array::U32(v)) => all(v),
            Value::Array(Array::I32(v)) => all(v),
            Value::Array(Array::I64(v)) => all(v),
            Value::Array(Array::U64(v)) => v.iter().map(|&x| x.try_into().ok()).collect(),
            _ => self.as_int().map(|v| vec![v]),
        }
    }
    /// The numbers of an array, or the one that stands for all.
    pub fn as_floats(&self) -> Option<Vec<f32>> {
        match self {
            Value::Array(Array::F32(v)) => Some(v.clone()),
            Value::Array(Array::F64(v)) => Some(v.iter().map(|&x| x as f32).collect()),
            _ => self.as_float().map(|v| vec![v]),
        }
    }
}

impl Array {
    /// The number of the elements' type in a file.
    pub(super) fn kind(&self) -> u32 {
        match self {
            Array::U8(_) => 0,
            Array::I8(_) => 1,
            Array::U16(_) => 2,
            Array::I16(_) => 3,
            Array::U32(_) => 4,
            Array::I32(_) => 5,
            Array::F32(_) => 6,
            Array::Bool(_) => 7,
            Array::Strings(_) => 8,
            Array::Arrays(_) => 9,
            Array::U64(_) => 10,
            Array::I64(_) => 11,
            Array::F64(_) => 12,
        }
    }
    /// The elements' type, as GGUF names it.
    pub fn type_name(&self) -> &'static str {
        TYPES[self.kind() as usize]
    }
    pub fn len(&self) -> usize {
        each_number!(self, Array, v => v.len(),
            Array::Bool(v) => v.len(),
            Array::Strings(v) => v.len(),
            Array::Arrays(v) => v.len(),
        )
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Strings quoted, arrays cut after a few elements.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        each_number!(self, Value, v => write!(f, "{v}"),
            Value::Bool(v) => write!(f, "{v}"),
            Value::String(v) => write!(f, "{v:?}"),
            Value::Array(v) => write!(f, "{v}"),
        )
    }
}

impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        const SHOWN: usize = 6;
        fn first<T: ToString>(v: &[T]) -> Vec<String> {
            v.iter().take(SHOWN).map(T::to_string).collect()
        }
        let shown = each_number!(self, Array, v => first(v),
            Array::Bool(v) => first(v),
            Array::Strings(v) => v.iter().take(SHOWN).map(|s| format!("{s:?}")).collect(),
            Array::Arrays(v) => first(v),
        );
        let more = if self.len() > SHOWN { format!(", ... {} in all", self.len()) } else { String::new() };
        write!(f, "[{}{more}]", shown.join(", "))
    }
}
