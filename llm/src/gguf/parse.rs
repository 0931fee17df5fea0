//! Bytes of one GGUF file to its metadata and tensor table.
//!
//! Nothing is believed: every count is held against the bytes that are left before memory is taken for it, so a file of n
//! bytes never makes more than a small multiple of n.

use super::value::{Array, Strings, Value};
use super::{Error, TensorInfo};
use compiler::quant::{FORMATS, Format};
use std::fmt::Display;

/// What a file holds, in the file's order.
#[derive(Debug)]
pub(super) struct Parsed {
    pub metadata: Vec<(String, Value)>,
    pub tensors: Vec<TensorInfo>,
}

/// Where general.alignment is not given.
pub(super) const ALIGNMENT: u64 = 32;
const MAX_ALIGNMENT: u64 = 1 << 20;
const MAX_DIMS: u32 = 4;
/// As the format's description has it.
const MAX_KEY: u64 = u16::MAX as u64;
/// Arrays in arrays; no model is known to have any.
const MAX_DEPTH: usize = 8;

/// The least that an entry can take in the file: an empty name, a type and a byte.
const MIN_KEY: u64 = 8 + 4 + 1;
/// An empty name, one dimension, a type and an offset.
const MIN_TENSOR: u64 = 8 + 4 + 8 + 4 + 8;

/// ggml's names of types that are not in the table of formats.
#[rustfmt::skip]
const OTHER_TYPES: [(u32, &str); 19] = [
    (9, "Q8_1"), (15, "Q8_K"), (16, "IQ2_XXS"), (17, "IQ2_XS"), (18, "IQ3_XXS"), (19, "IQ1_S"), (21, "IQ3_S"),
    (22, "IQ2_S"), (24, "I8"), (25, "I16"), (26, "I32"), (27, "I64"), (28, "F64"), (29, "IQ1_M"), (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"), (33, "Q4_0_8_8"), (34, "TQ1_0"), (35, "TQ2_0"),
];

pub(super) fn parse(file: &str, bytes: &[u8], part: usize) -> Result<Parsed, Error> {
    let mut r = Reader { file, bytes, at: 0 };
    if !bytes.starts_with(b"GGUF") {
        let found = String::from_utf8_lossy(&bytes[..bytes.len().min(4)]).into_owned();
        return Err(r.invalid(&"magic", "\"GGUF\"", format!("{found:?}: this is not a GGUF file")));
    }
    r.at = 4;
    let version = r.u32(&"version")?;
    match version {
        2 | 3 => {}
        _ if matches!(version.swap_bytes(), 1..=3) => {
            return Err(r.invalid(&"byte order", "a little-endian file", "a big-endian one; convert it"));
        }
        1 => return Err(r.invalid(&"version", "2 or 3", "1; convert the model again, to version 3")),
        _ => return Err(r.invalid(&"version", "2 or 3", version)),
    }
    let tensor_count = r.u64(&"tensor count")?;
    let key_count = r.u64(&"metadata count")?;

    let mut metadata = Vec::with_capacity(r.fits(&"metadata count", key_count, MIN_KEY)?);
    for i in 0..key_count {
        let key = r.text(&format_args!("name of metadata {i}"), MAX_KEY)?.to_string();
        let value = r.value(&key)?;
        metadata.push((key, value));
    }
    let alignment = alignment(&r, &metadata)?;

    let mut tensors = Vec::with_capacity(r.fits(&"tensor count", tensor_count, MIN_TENSOR)?);
    for i in 0..tensor_count {
        let name = r.text(&format_args!("name of tensor {i}"), MAX_KEY)?.to_string();
        tensors.push(r.tensor(name, part, alignment)?);
    }
    place(&r, &mut tensors, alignment)?;
    Ok(Parsed { metadata, tensors })
}

fn alignment(r: &Reader, metadata: &[(String, Value)]) -> Result<u64, Error> {
    let Some((key, value)) = metadata.iter().find(|(k, _)| k == "general.alignment") else {
        return Ok(ALIGNMENT);
    };
    let given = value.as_int().and_then(|v| u64::try_from(v).ok());
    given.filter(|a| a.is_power_of_two() && *a <= MAX_ALIGNMENT).ok_or_else(|| {
        r.invalid(
            key,
            format!("a power of two of at most {MAX_ALIGNMENT}"),
            format!("{value} ({})", value.type_name()),
        )
    })
}

/// Turns offsets in the data section, which begins behind the table, into places in the file.
fn place(r: &Reader, tensors: &mut [TensorInfo], alignment: u64) -> Result<(), Error> {
    let (size, start) = (r.bytes.len() as u64, (r.at as u64).next_multiple_of(alignment));
    for t in tensors.iter_mut() {
        let end = start.checked_add(t.at as u64).and_then(|at| at.checked_add(t.bytes as u64));
        match end {
            Some(end) if end <= size => t.at = end as usize - t.bytes,
            _ => {
                let expected = format!(
                    "{} bytes from offset {} of the data, which begin at byte {start}",
                    t.bytes, t.at
                );
                let found = format!("a file of {size} bytes; it is cut short or damaged: fetch it again");
                return Err(r.invalid(&format_args!("tensor {}", t.name), expected, found));
            }
        }
    }
    // Tensors that share bytes would let a small file ask for any amount of memory.
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_unstable_by_key(|t| t.at);
    match order.windows(2).find(|pair| pair[0].at + pair[0].bytes > pair[1].at) {
        None => Ok(()),
        Some(pair) => Err(r.invalid(
            &format_args!("offset of tensor {}", pair[1].name),
            "bytes of its own",
            format!("some of tensor {}'s", pair[0].name),
        )),
    }
}

struct Reader<'a> {
    file: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn invalid(&self, field: &dyn Display, expected: impl Display, found: impl Display) -> Error {
        Error::Invalid {
            file: self.file.into(),
            field: field.to_string(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }
    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    #[inline]
    fn take(&mut self, field: &dyn Display, n: u64) -> Result<&'a [u8], Error> {
        match usize::try_from(n) {
            Ok(n) if n <= self.left() => {
                let taken = &self.bytes[self.at..self.at + n];
                self.at += n;
                Ok(taken)
            }
            _ => Err(self.cut_short(field, n)),
        }
    }
    #[cold]
    fn cut_short(&self, field: &dyn Display, n: u64) -> Error {
        let expected = format!("{n} bytes at byte {}", self.at);
        self.invalid(field, expected, format!("{} to the file's end", self.left()))
    }
    #[inline]
    fn array<const N: usize>(&mut self, field: &dyn Display) -> Result<[u8; N], Error> {
        Ok(self.take(field, N as u64)?.try_into().expect("as many bytes as asked for"))
    }
    fn u32(&mut self, field: &dyn Display) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }
    #[inline]
    fn u64(&mut self, field: &dyn Display) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// `count` things of at least `size` bytes each must still come.
    fn fits(&self, field: &dyn Display, count: u64, size: u64) -> Result<usize, Error> {
        let most = self.left() as u64 / size;
        if count <= most {
            return Ok(count as usize);
        }
        Err(self.invalid(field, format!("at most {most} in the {} bytes that follow", self.left()), count))
    }

    fn text(&mut self, field: &dyn Display, max: u64) -> Result<&'a str, Error> {
        let len = self.u64(&format_args!("{field} (length)"))?;
        if len > max {
            return Err(self.invalid(field, format!("at most {max} bytes"), len));
        }
        let bytes = self.take(field, len)?;
        self.utf8(field, bytes)
    }

    fn utf8<'b>(&self, field: &dyn Display, bytes: &'b [u8]) -> Result<&'b str, Error> {
        std::str::from_utf8(bytes).map_err(|e| {
            let (valid, bad) = bytes.split_at(e.valid_up_to());
            let before = String::from_utf8_lossy(&valid[valid.len().saturating_sub(24)..]);
            let found = format!("byte {:#04x} after {before:?}", bad[0]);
            self.invalid(field, "UTF-8", found)
        })
    }

    fn strings(&mut self, key: &str, n: usize) -> Result<Strings, Error> {
        let (mut text, mut ends) = (Vec::new(), Vec::with_capacity(n));
        for i in 0..n {
            let field = format_args!("{key}[{i}]");
            let len = self.u64(&format_args!("{field} (length)"))?;
            text.extend_from_slice(self.take(&field, len)?);
            ends.push(text.len());
        }
        // One check of all strings is several times faster than one of each.
        Strings::new(text, ends).or_else(|(text, ends)| {
            let mut all = Strings::default();
            let starts = std::iter::once(0).chain(ends.iter().copied());
            for (i, (start, &end)) in starts.zip(&ends).enumerate() {
                all.push(self.utf8(&format_args!("{key}[{i}]"), &text[start..end])?);
            }
            Ok(all)
        })
    }

    fn value(&mut self, key: &str) -> Result<Value, Error> {
        let field: &dyn Display = &key;
        Ok(match self.u32(&format_args!("{key} (type)"))? {
            0 => Value::U8(self.array::<1>(field)?[0]),
            1 => Value::I8(i8::from_le_bytes(self.array(field)?)),
            2 => Value::U16(u16::from_le_bytes(self.array(field)?)),
            3 => Value::I16(i16::from_le_bytes(self.array(field)?)),
            4 => Value::U32(self.u32(field)?),
            5 => Value::I32(i32::from_le_bytes(self.array(field)?)),
            6 => Value::F32(f32::from_le_bytes(self.array(field)?)),
            7 => Value::Bool(self.bool(field)?),
            8 => Value::String(self.text(field, u64::MAX)?.into()),
            9 => Value::Array(self.elements(key, 0)?),
            10 => Value::U64(self.u64(field)?),
            11 => Value::I64(i64::from_le_bytes(self.array(field)?)),
            12 => Value::F64(f64::from_le_bytes(self.array(field)?)),
            other => return Err(self.invalid(&format_args!("{key} (type)"), "0 to 12", other)),
        })
    }

    fn bool(&mut self, field: &dyn Display) -> Result<bool, Error> {
        match self.array::<1>(field)?[0] {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.invalid(field, "0 or 1 for a bool", other)),
        }
    }

    fn numbers<T, const N: usize>(
        &mut self,
        key: &str,
        count: u64,
        number: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, Error> {
        let count = self.fits(&format_args!("{key} (length)"), count, N as u64)?;
        let (numbers, _) = self.take(&key, (count * N) as u64)?.as_chunks::<N>();
        Ok(numbers.iter().map(|&b| number(b)).collect())
    }

    fn elements(&mut self, key: &str, depth: usize) -> Result<Array, Error> {
        if depth == MAX_DEPTH {
            return Err(self.invalid(&key, format!("at most {MAX_DEPTH} arrays in one another"), "more"));
        }
        let kind = self.u32(&format_args!("{key} (element type)"))?;
        let n = self.u64(&format_args!("{key} (length)"))?;
        Ok(match kind {
            0 => Array::U8(self.numbers(key, n, u8::from_le_bytes)?),
            1 => Array::I8(self.numbers(key, n, i8::from_le_bytes)?),
            2 => Array::U16(self.numbers(key, n, u16::from_le_bytes)?),
            3 => Array::I16(self.numbers(key, n, i16::from_le_bytes)?),
            4 => Array::U32(self.numbers(key, n, u32::from_le_bytes)?),
            5 => Array::I32(self.numbers(key, n, i32::from_le_bytes)?),
            6 => Array::F32(self.numbers(key, n, f32::from_le_bytes)?),
            7 => {
                let n = self.fits(&format_args!("{key} (length)"), n, 1)?;
                Array::Bool((0..n).map(|_| self.bool(&key)).collect::<Result<_, _>>()?)
            }
            8 => {
                let n = self.fits(&format_args!("{key} (length)"), n, 8)?;
                Array::Strings(self.strings(key, n)?)
            }
            9 => {
                let n = self.fits(&format_args!("{key} (length)"), n, 4 + 8)?;
                Array::Arrays((0..n).map(|_| self.elements(key, depth + 1)).collect::<Result<_, _>>()?)
            }
            10 => Array::U64(self.numbers(key, n, u64::from_le_bytes)?),
            11 => Array::I64(self.numbers(key, n, i64::from_le_bytes)?),
            12 => Array::F64(self.numbers(key, n, f64::from_le_bytes)?),
            other => return Err(self.invalid(&format_args!("{key} (element type)"), "0 to 12", other)),
        })
    }

    /// `at` of the result is the offset in the data section, a multiple of the alignment.
    fn tensor(&mut self, name: String, part: usize, alignment: u64) -> Result<TensorInfo, Error> {
        let n = self.u32(&format_args!("number of dimensions of tensor {name}"))?;
        if !(1..=MAX_DIMS).contains(&n) {
            return Err(self.invalid(&format_args!("number of dimensions of tensor {name}"), "1 to 4", n));
        }
        let field = format!("dimensions of tensor {name}");
        let mut dims = (0..n).map(|_| self.u64(&field)).collect::<Result<Vec<u64>, _>>()?;
        dims.reverse();

        let id = self.u32(&format_args!("type of tensor {name}"))?;
        let format = Format::by_id(id).ok_or_else(|| {
            let known: Vec<String> = FORMATS.iter().map(|f| format!("{} ({})", f.name, f.id)).collect();
            let called = OTHER_TYPES.iter().find(|t| t.0 == id).map(|t| format!(" ({})", t.1));
            let found = format!("{id}{}, which is not supported", called.unwrap_or_default());
            self.invalid(
                &format_args!("type of tensor {name}"),
                format!("one of {}", known.join(", ")),
                found,
            )
        })?;

        // One bound for elements and bytes: no format takes more than 8 bytes an element.
        let elements =
            dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d)).filter(|n| *n <= i64::MAX as u64 / 8);
        let elements = match elements {
            Some(n) if n > 0 => n,
            _ => {
                return Err(self.invalid(
                    &field,
                    "sizes from 1 to 2^60 elements in all",
                    format!("{dims:?}"),
                ));
            }
        };
        let row = dims[dims.len() - 1];
        if row % format.block as u64 != 0 {
            let expected = format!("rows of a multiple of {} elements for {}", format.block, format.name);
            return Err(self.invalid(&field, expected, row));
        }
        let bytes = elements / format.block as u64 * format.bytes as u64;

        let offset = self.u64(&format_args!("offset of tensor {name}"))?;
        if offset % alignment != 0 {
            let field = format_args!("offset of tensor {name}");
            return Err(self.invalid(&field, format!("a multiple of {alignment}"), offset));
        }
        let inside = |n: u64| usize::try_from(n).ok().filter(|n| *n <= self.bytes.len());
        match (inside(offset), inside(bytes)) {
            (Some(at), Some(bytes)) => {
                let dims = dims.iter().map(|&d| d as i64).collect();
                Ok(TensorInfo { name, format, dims, bytes, part, at })
            }
            _ => Err(self.invalid(
                &format_args!("tensor {name}"),
                format!("{bytes} bytes from offset {offset} of the data"),
                format!("a file of {} bytes; it is cut short or damaged: fetch it again", self.bytes.len()),
            )),
        }
    }
}
