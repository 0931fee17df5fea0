//! Metadata and a tensor table to the bytes that a GGUF file of version 3 begins with.

use super::parse::ALIGNMENT;
use super::value::{Array, Value, each_number};
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
    put(out, value.kind().to_le_bytes());
    each_number!(value, Value, v => put(out, v.to_le_bytes()),
        Value::Bool(v) => out.push(*v as u8),
        Value::String(v) => put_text(out, v),
        Value::Array(v) => put_array(out, v),
    )
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    put(out, array.kind().to_le_bytes());
    put(out, (array.len() as u64).to_le_bytes());
    each_number!(array, Array, v => v.iter().for_each(|x| put(out, x.to_le_bytes())),
        Array::Bool(v) => v.iter().for_each(|x| out.push(*x as u8)),
        Array::Strings(v) => v.iter().for_each(|x| put_text(out, x)),
        Array::Arrays(v) => v.iter().for_each(|x| put_array(out, x)),
    )
}
