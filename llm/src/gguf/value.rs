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

/// Many strings in one allocation.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Strings {
    text: String,
    ends: Vec<usize>,
}

impl Strings {
    pub fn with_capacity(n: usize) -> Strings {
        Strings { text: String::new(), ends: Vec::with_capacity(n) }
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
    /// As GGUF names it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::U8(_) => "uint8",
            Value::I8(_) => "int8",
            Value::U16(_) => "uint16",
            Value::I16(_) => "int16",
            Value::U32(_) => "uint32",
            Value::I32(_) => "int32",
            Value::F32(_) => "float32",
            Value::Bool(_) => "bool",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::U64(_) => "uint64",
            Value::I64(_) => "int64",
            Value::F64(_) => "float64",
        }
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
    /// The elements' type, as GGUF names it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Array::U8(_) => "uint8",
            Array::I8(_) => "int8",
            Array::U16(_) => "uint16",
            Array::I16(_) => "int16",
            Array::U32(_) => "uint32",
            Array::I32(_) => "int32",
            Array::F32(_) => "float32",
            Array::Bool(_) => "bool",
            Array::Strings(_) => "string",
            Array::Arrays(_) => "array",
            Array::U64(_) => "uint64",
            Array::I64(_) => "int64",
            Array::F64(_) => "float64",
        }
    }
    pub fn len(&self) -> usize {
        match self {
            Array::U8(v) => v.len(),
            Array::I8(v) => v.len(),
            Array::U16(v) => v.len(),
            Array::I16(v) => v.len(),
            Array::U32(v) => v.len(),
            Array::I32(v) => v.len(),
            Array::F32(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::Strings(v) => v.len(),
            Array::Arrays(v) => v.len(),
            Array::U64(v) => v.len(),
            Array::I64(v) => v.len(),
            Array::F64(v) => v.len(),
        }
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Strings quoted, arrays cut after a few elements.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Value::U8(v) => write!(f, "{v}"),
            Value::I8(v) => write!(f, "{v}"),
            Value::U16(v) => write!(f, "{v}"),
            Value::I16(v) => write!(f, "{v}"),
            Value::U32(v) => write!(f, "{v}"),
            Value::I32(v) => write!(f, "{v}"),
            Value::F32(v) => write!(f, "{v}"),
            Value::Bool(v) => write!(f, "{v}"),
            Value::String(v) => write!(f, "{v:?}"),
            Value::Array(v) => write!(f, "{v}"),
            Value::U64(v) => write!(f, "{v}"),
            Value::I64(v) => write!(f, "{v}"),
            Value::F64(v) => write!(f, "{v}"),
        }
    }
}

const SHOWN: usize = 6;

impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let shown: Vec<String> = match self {
            Array::U8(v) => v.iter().take(SHOWN).map(|x| x.to_string()).collect(),
            Array::I8(v) => v.iter().take(SHOWN).map(|x| x.to_string()).collect(),
            Array::U16(v) => v.iter().take(SHOWN).map(|x| x.to_string()).collect(),
            Array::I16(v) => v.iter().take(SHOWN).map(|x| x.to_string()).collect(),
            Array::U32(v) => v.iter().take(SHOWN).map(|x| x.to_string()).collect(),
            Array::I32(v) => v.iter().take(SHOWN).map(|x| x.to_string()).collect(),
            Array::F32(v) => v.iter().take(SHOWN).map(|x| x.to_string()).collect(),
            Array::Bool(v) => v.iter().take(SHOWN).map(|x| x.to_string()).collect(),
            Array::Strings(v) => v.iter().take(SHOWN).map(|x| format!("{x:?}")).collect(),
            Array::Arrays(v) => v.iter().take(SHOWN).map(|x| x.to_string()).collect(),
            Array::U64(v) => v.iter().take(SHOWN).map(|x| x.to_string()).collect(),
            Array::I64(v) => v.iter().take(SHOWN).map(|x| x.to_string()).collect(),
            Array::F64(v) => v.iter().take(SHOWN).map(|x| x.to_string()).collect(),
        };
        let more = if self.len() > SHOWN { format!(", ... {} in all", self.len()) } else { String::new() };
        write!(f, "[{}{more}]", shown.join(", "))
    }
}
