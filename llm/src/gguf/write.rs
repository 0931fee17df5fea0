//! Metadata and a tensor table to the bytes that a GGUF file of version 3 begins with.

use super::parse::ALIGNMENT;
use super::value::{Array, Value};
use compiler::quant::Format;

/// Everything up to the data section. The tensors' data follow in the same order, each padded with zeros to a multiple of
/// the alignment, which is `general.alignment` or 32. `dims` are outermost first.
pub fn header<'a>(
    metadata: impl IntoIterator<Item = (&'a str, &'a Value)>,
    tensors: impl IntoIterator<Item = (&'a str, &'static Format, &'a [i64])>,
) -> Vec<u8> {
    let (mut keys, mut key_count, mut alignment) = (Vec::new(), 0u64, ALIGNMENT);
    for (key, value) in metadata {
        put_text(&mut keys, key);
        put_value(&mut keys, value);
        key_count += 1;
        if key == "general.alignment" {
            alignment = value.as_int().map_or(alignment, |v| v as u64);
        }
    }
    let (mut table, mut tensor_count, mut offset) = (Vec::new(), 0u64, 0u64);
    for (name, format, dims) in tensors {
        put_text(&mut table, name);
        put(&mut table, (dims.len() as u32).to_le_bytes());
        dims.iter().rev().for_each(|d| put(&mut table, d.to_le_bytes()));
        put(&mut table, format.id.to_le_bytes());
        put(&mut table, offset.to_le_bytes());
        let bytes = dims.iter().product::<i64>() / format.block * format.bytes;
        offset = (offset + bytes as u64).next_multiple_of(alignment);
        tensor_count += 1;
    }
    let mut out = b"GGUF".to_vec();
    put(&mut out, 3u32.to_le_bytes());
    put(&mut out, tensor_count.to_le_bytes());
    put(&mut out, key_count.to_le_bytes());
    out.extend(keys);
    out.extend(table);
    out.resize(out.len().next_multiple_of(alignment as usize), 0);
    out
}

fn put<const N: usize>(out: &mut Vec<u8>, bytes: [u8; N]) {
    out.extend(bytes);
}
fn put_text(out: &mut Vec<u8>, s: &str) {
    put(out, (s.len() as u64).to_le_bytes());
    out.extend(s.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    let kind: u32 = match value {
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
    };
    put(out, kind.to_le_bytes());
    match value {
        Value::U8(v) => put(out, v.to_le_bytes()),
        Value::I8(v) => put(out, v.to_le_bytes()),
        Value::U16(v) => put(out, v.to_le_bytes()),
        Value::I16(v) => put(out, v.to_le_bytes()),
        Value::U32(v) => put(out, v.to_le_bytes()),
        Value::I32(v) => put(out, v.to_le_bytes()),
        Value::F32(v) => put(out, v.to_le_bytes()),
        Value::Bool(v) => out.push(*v as u8),
        Value::String(v) => put_text(out, v),
        Value::Array(v) => put_array(out, v),
        Value::U64(v) => put(out, v.to_le_bytes()),
        Value::I64(v) => put(out, v.to_le_bytes()),
        Value::F64(v) => put(out, v.to_le_bytes()),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    let kind: u32 = match array {
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
    };
    put(out, kind.to_le_bytes());
    put(out, (array.len() as u64).to_le_bytes());
    match array {
        Array::U8(v) => out.extend(v),
        Array::I8(v) => v.iter().for_each(|x| put(out, x.to_le_bytes())),
        Array::U16(v) => v.iter().for_each(|x| put(out, x.to_le_bytes())),
        Array::I16(v) => v.iter().for_each(|x| put(out, x.to_le_bytes())),
        Array::U32(v) => v.iter().for_each(|x| put(out, x.to_le_bytes())),
        Array::I32(v) => v.iter().for_each(|x| put(out, x.to_le_bytes())),
        Array::F32(v) => v.iter().for_each(|x| put(out, x.to_le_bytes())),
        Array::Bool(v) => v.iter().for_each(|x| out.push(*x as u8)),
        Array::Strings(v) => v.iter().for_each(|x| put_text(out, x)),
        Array::Arrays(v) => v.iter().for_each(|x| put_array(out, x)),
        Array::U64(v) => v.iter().for_each(|x| put(out, x.to_le_bytes())),
        Array::I64(v) => v.iter().for_each(|x| put(out, x.to_le_bytes())),
        Array::F64(v) => v.iter().for_each(|x| put(out, x.to_le_bytes())),
    }
}
