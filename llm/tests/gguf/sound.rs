//! What holds for every file that opens, whatever its bytes.

use llm::gguf::{Array, Gguf, Value, header};

/// Opens a file and looks at everything in it; false where it is refused. Panics where it is opened and unsound.
pub fn check(bytes: &[u8]) -> bool {
    let opened = Gguf::from_vec("model.gguf", bytes.to_vec());
    let model = match opened {
        Ok(model) => model,
        Err(e) => {
            let message = e.to_string();
            assert!(message.starts_with("model.gguf: "), "no file is named: {message}");
            // Names may be of any length below 64 KiB; nothing else of the file is repeated at length.
            assert!(message.len() < 1000 + 5 * 65536, "a message of {} bytes", message.len());
            return false;
        }
    };
    let stored: usize = model.metadata().map(|(key, value)| key.len() + 96 + size(value)).sum();
    assert!(stored <= 16 * bytes.len(), "{stored} bytes of metadata out of {}", bytes.len());
    for (key, value) in model.metadata() {
        assert!(std::ptr::eq(model.value(key).unwrap(), value), "{key} is not found");
        assert!(value.to_string().len() <= 16 * bytes.len() + 1000, "{key} is shown too long");
        let _ = (model.int(key), model.float(key), model.text(key), model.opt_bool(key));
        let _ = (model.strings(key), model.opt_ints(key), model.opt_floats(key));
    }
    let mut total = 0;
    for t in model.tensors() {
        assert!(std::ptr::eq(model.tensor(&t.name).unwrap(), t), "{t:?} is not found");
        assert_eq!(t.elements() / t.format.block * t.format.bytes, t.bytes() as i64, "{t:?}");
        let data = model.bytes(t, 0..t.bytes()).unwrap();
        assert_eq!(data.len(), t.bytes());
        assert!(model.bytes(t, 0..t.bytes() + 1).is_err() && model.bytes(t, usize::MAX..usize::MAX).is_err());
        model.release(t, 0..t.bytes());
        total += t.bytes();
    }
    assert!(total <= bytes.len(), "{total} bytes of tensors out of {}", bytes.len());

    let written = header(model.metadata(), []);
    let again = Gguf::from_vec("again", written.clone()).unwrap();
    assert!(header(again.metadata(), []) == written, "metadata change when they are written and read");
    true
}

/// Heap bytes of a value, more or less.
fn size(value: &Value) -> usize {
    match value {
        Value::String(s) => s.len(),
        Value::Array(a) => array_size(a),
        _ => 0,
    }
}
fn array_size(array: &Array) -> usize {
    match array {
        Array::Strings(s) => s.iter().map(|s| s.len() + 8).sum(),
        Array::Arrays(a) => a.iter().map(|a| 64 + array_size(a)).sum(),
        other => 8 * other.len(),
    }
}
