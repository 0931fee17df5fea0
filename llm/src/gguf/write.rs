//! Models to GGUF files of version 3. In: keys and tensors. Out: bytes. A file that bears its name is whole: it is written
//! under another and renamed.

use super::parse::ALIGNMENT;
use super::value::{Array, Value, each_number};
use super::{Error, Gguf};
use compiler::quant::Format;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Bytes of a tensor's data.
pub(super) fn data_bytes(format: &Format, dims: &[i64]) -> u64 {
    (dims.iter().product::<i64>() / format.block * format.bytes) as u64
}

/// Writes the model as one file. `progress` gets the bytes written and those to be written.
pub fn write_gguf(model: &Gguf, path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<(), Error> {
    let file = path.display().to_string();
    let mut part = path.as_os_str().to_os_string();
    part.push(".part");
    let mut total = 0;
    let written = write_to(Path::new(&part), model, &mut total, progress);
    let renamed = written.and_then(|()| fs::rename(&part, path).map_err(Failed::Io));
    renamed.map_err(|e| {
        // There may be none; the first error is the one to report.
        let _ = fs::remove_file(&part);
        match e {
            Failed::Model(e) => e,
            Failed::Io(e) if e.kind() == io::ErrorKind::StorageFull => Error::Full { file, bytes: total },
            Failed::Io(error) => Error::Io { file, error },
        }
    })
}

enum Failed {
    Model(Error),
    Io(io::Error),
}
impl From<io::Error> for Failed {
    fn from(e: io::Error) -> Failed {
        Failed::Io(e)
    }
}

fn write_to(
    path: &Path,
    model: &Gguf,
    total: &mut u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), Failed> {
    const PIECE: usize = 4 << 20;
    // A model of several parts becomes one file.
    let metadata = || model.metadata().filter(|(key, _)| !key.starts_with("split."));
    let tensors = model.tensors().iter().map(|t| (t.name.as_str(), t.format, &t.dims[..]));
    let head = header(metadata(), tensors);
    let alignment = alignment(metadata()) as usize;
    let padded = |bytes: usize| bytes.next_multiple_of(alignment);
    *total = (head.len() + model.tensors().iter().map(|t| padded(t.bytes())).sum::<usize>()) as u64;

    let mut out = File::create(path)?;
    out.write_all(&head)?;
    let mut done = head.len() as u64;
    for t in model.tensors() {
        for start in (0..t.bytes()).step_by(PIECE) {
            let range = start..t.bytes().min(start + PIECE);
            out.write_all(&model.bytes(t, range.clone()).map_err(Failed::Model)?)?;
            done += range.len() as u64;
            model.release(t, range);
            progress(done, *total);
        }
        let padding = padded(t.bytes()) - t.bytes();
        out.write_all(&vec![0; padding])?;
        done += padding as u64;
    }
    // A full disk may only be noticed here.
    out.sync_all()?;
    progress(done, *total);
    Ok(())
}

fn alignment<'a>(metadata: impl IntoIterator<Item = (&'a str, &'a Value)>) -> u64 {
    let given = metadata.into_iter().find(|(key, _)| *key == "general.alignment");
    let given = given.and_then(|(_, v)| v.as_int()).map(|v| v as u64);
    given.filter(|a| a.is_power_of_two()).unwrap_or(ALIGNMENT)
}

/// Everything up to the data section. The tensors' data follow in the same order, each padded with zeros to a multiple of
/// the alignment, which is `general.alignment` or 32. `dims` are outermost first.
pub fn header<'a>(
    metadata: impl IntoIterator<Item = (&'a str, &'a Value), IntoIter: Clone>,
    tensors: impl IntoIterator<Item = (&'a str, &'static Format, &'a [i64])>,
) -> Vec<u8> {
    let metadata = metadata.into_iter();
    let alignment = alignment(metadata.clone());
    let (mut keys, mut key_count) = (Vec::new(), 0u64);
    for (key, value) in metadata {
        put_text(&mut keys, key);
        put_value(&mut keys, value);
        key_count += 1;
    }
    let (mut table, mut tensor_count, mut offset) = (Vec::new(), 0u64, 0u64);
    for (name, format, dims) in tensors {
        put_text(&mut table, name);
        put(&mut table, (dims.len() as u32).to_le_bytes());
        dims.iter().rev().for_each(|d| put(&mut table, d.to_le_bytes()));
        put(&mut table, format.id.to_le_bytes());
        put(&mut table, offset.to_le_bytes());
        offset = (offset + data_bytes(format, dims)).next_multiple_of(alignment);
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
