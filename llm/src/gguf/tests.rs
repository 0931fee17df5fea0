use super::*;
use compiler::quant::Format;

fn format(name: &str) -> &'static Format {
    Format::by_name(name).unwrap()
}

/// A file's bytes; the tensors' data count up.
fn file(metadata: &[(&str, Value)], tensors: &[(&str, &str, &[i64])]) -> Vec<u8> {
    let table = tensors.iter().map(|&(name, f, dims)| (name, format(f), dims));
    let mut out = header(metadata.iter().map(|(k, v)| (*k, v)), table);
    for &(_, f, dims) in tensors {
        let bytes = dims.iter().product::<i64>() / format(f).block * format(f).bytes;
        out.extend((0..bytes).map(|i| i as u8));
        out.resize(out.len().next_multiple_of(32), 0);
    }
    out
}
fn small() -> Vec<u8> {
    let metadata = [("general.architecture", "llama".into()), ("a.count", 7u32.into())];
    file(&metadata, &[("x", "F32", &[3]), ("w", "Q4_0", &[2, 5, 64])])
}
fn open(bytes: Vec<u8>) -> Result<Gguf, Error> {
    Gguf::from_vec("m.gguf", bytes)
}
#[track_caller]
fn refused(bytes: Vec<u8>, says: &str) {
    let error = open(bytes).unwrap_err().to_string();
    assert!(error.starts_with("m.gguf: ") && error.contains(says), "{error}");
}
/// Where `name` stands in the file, behind the name.
fn behind(bytes: &[u8], name: &str) -> usize {
    bytes.windows(name.len()).position(|w| w == name.as_bytes()).unwrap() + name.len()
}
fn patched(at: impl Fn(&[u8]) -> usize, patch: &[u8]) -> Vec<u8> {
    let mut bytes = small();
    let at = at(&bytes);
    bytes[at..at + patch.len()].copy_from_slice(patch);
    bytes
}

#[test]
fn every_type_of_metadata_comes_back() {
    let nested = Array::Arrays(vec![Array::I32(vec![1, -2]), Array::Strings(["a", ""].iter().collect())]);
    let values: Vec<(String, Value)> = [
        Value::from(200u8),
        (-3i8).into(),
        60000u16.into(),
        (-300i16).into(),
        4_000_000_000u32.into(),
        (-70000i32).into(),
        0.25f32.into(),
        true.into(),
        "tokens ▁".into(),
        u64::MAX.into(),
        i64::MIN.into(),
        1e300f64.into(),
        vec![1u8, 2].into(),
        vec![-1i8].into(),
        vec![1u16, 65535].into(),
        vec![-1i16].into(),
        vec![1u32].into(),
        vec![-1i32, 5].into(),
        vec![0.5f32, f32::INFINITY].into(),
        vec![true, false].into(),
        ["", "x", "żółw"].iter().collect::<Strings>().into(),
        vec![1u64].into(),
        vec![-1i64].into(),
        Vec::<f64>::new().into(),
        Value::Array(nested),
    ]
    .into_iter()
    .enumerate()
    .map(|(i, v)| (format!("k.{i}"), v))
    .collect();
    let bytes = header(values.iter().map(|(k, v)| (k.as_str(), v)), []);
    let g = open(bytes).unwrap();
    let back: Vec<(String, Value)> = g.metadata().map(|(k, v)| (k.into(), v.clone())).collect();
    assert_eq!(back, values);
    assert_eq!(g.value("k.8"), Some(&"tokens ▁".into()));
    assert_eq!(g.value("k"), None);
}

#[test]
fn getters_take_any_width_and_name_what_is_wrong() {
    let metadata = [
        ("i", 7u8.into()),
        ("j", (-7i64).into()),
        ("big", u64::MAX.into()),
        ("f", 0.5f64.into()),
        ("s", "text".into()),
        ("b", true.into()),
        ("ss", ["a", "b"].iter().collect::<Strings>().into()),
        ("ii", vec![1u16, 2].into()),
        ("ff", vec![0.5f32].into()),
    ];
    let g = open(file(&metadata, &[])).unwrap();
    assert_eq!((g.int("i").unwrap(), g.opt_int("j").unwrap(), g.opt_int("no").unwrap()), (7, Some(-7), None));
    assert_eq!((g.float("f").unwrap(), g.text("s").unwrap()), (0.5, "text"));
    assert_eq!(g.opt_bool("b").unwrap(), Some(true));
    assert_eq!(g.strings("ss").unwrap(), ["a", "b"]);
    assert_eq!(g.opt_ints("ii").unwrap().unwrap(), [1, 2]);
    assert_eq!(g.opt_ints("i").unwrap().unwrap(), [7]);
    assert_eq!(g.opt_floats("ff").unwrap().unwrap(), [0.5]);
    let error = |e: Error| e.to_string();
    assert_eq!(
        error(g.int("big").unwrap_err()),
        "m.gguf: big: expected an integer, found 18446744073709551615 (uint64)"
    );
    assert_eq!(error(g.int("s").unwrap_err()), "m.gguf: s: expected an integer, found the string \"text\"");
    assert_eq!(
        error(g.opt_text("ii").unwrap_err()),
        "m.gguf: ii: expected a string, found an array of 2 uint16"
    );
    assert_eq!(
        error(g.architecture().unwrap_err()),
        "m.gguf: the metadata has no general.architecture, which should be a string"
    );
}

#[test]
fn tensors_are_found_and_read() {
    let g = open(small()).unwrap();
    assert_eq!((g.name(), g.architecture().unwrap(), g.int("a.count").unwrap()), ("m.gguf", "llama", 7));
    let w = g.tensor("w").unwrap();
    assert_eq!((w.format.name, &w.dims[..], w.bytes(), w.elements()), ("Q4_0", &[2i64, 5, 64][..], 360, 640));
    assert_eq!(*g.bytes(w, 0..360).unwrap(), (0..360).map(|i| i as u8).collect::<Vec<_>>()[..]);
    assert_eq!(*g.bytes(w, 18..20).unwrap(), [18, 19]);
    assert_eq!(g.bytes_total(), 372);
    assert!(g.tensor("y").is_none());
    g.release(w, 0..usize::MAX);
    let outside = g.bytes(w, 350..361).unwrap_err().to_string();
    assert_eq!(outside, "m.gguf: data of tensor w: expected a range of its 360 bytes, found 350..361");
}

#[test]
fn every_truncation_is_an_error() {
    let bytes = small();
    let end = bytes.len() - (32 - 360 % 32);
    for n in 0..end {
        refused(bytes[..n].to_vec(), "expected");
    }
    assert!(open(bytes[..end].to_vec()).is_ok());
}

#[test]
fn headers_that_are_not_ours_are_named() {
    refused(patched(|_| 0, b"PK"), "magic: expected \"GGUF\", found \"PKUF\": this is not a GGUF file");
    refused(patched(|_| 4, &[1]), "version: expected 2 or 3, found 1");
    refused(patched(|_| 4, &[4]), "version: expected 2 or 3, found 4");
    refused(patched(|_| 4, &[0, 0, 0, 3]), "byte order: expected a little-endian file");
    assert!(open(patched(|_| 4, &[2])).is_ok());
}

#[test]
fn counts_are_held_against_the_file() {
    refused(patched(|_| 8, &[0xff; 8]), "tensor count: expected at most ");
    refused(patched(|_| 16, &[0xff; 8]), "metadata count: expected at most ");
    refused(patched(|_| 24, &[0xff; 8]), "name of metadata 0: expected at most 65535 bytes");
    let llama = |b: &[u8]| behind(b, "general.architecture") + 4;
    refused(
        patched(llama, &u64::MAX.to_le_bytes()),
        "general.architecture: expected 18446744073709551615 bytes",
    );
    let array = |v: Value| file(&[("k", v)], &[]);
    for v in
        [vec![1u8].into(), vec![1f64].into(), vec![true].into(), ["x"].iter().collect::<Strings>().into()]
    {
        let mut bytes = array(v);
        let at = behind(&bytes, "k") + 8;
        bytes[at..at + 8].copy_from_slice(&(u64::MAX / 8 + 1).to_le_bytes());
        refused(bytes, "k (length): expected at most ");
    }
}

#[test]
fn nonsense_in_metadata_is_named() {
    refused(patched(|b| behind(b, "a.count"), &[13]), "a.count (type): expected 0 to 12, found 13");
    refused(
        patched(|b| behind(b, "general.architecture") - 1, &[0xff]),
        "name of metadata 0: expected UTF-8",
    );
    let llama = |b: &[u8]| behind(b, "general.architecture") + 4 + 8 + 2;
    refused(patched(llama, &[0xc3]), "general.architecture: expected UTF-8, found byte 0xc3 after \"ll\"");
    for (cut, says) in
        [(1, "k[0]: expected UTF-8, found byte 0xc5"), (2, "k[1]: expected UTF-8, found byte 0xbc")]
    {
        let mut halves = file(&[("k", ["ż", "xy"].iter().collect::<Strings>().into())], &[]);
        let at = behind(&halves, "k") + 4 + 4 + 8;
        // The first string's length, its bytes, the second's length.
        halves[at] = cut;
        if cut == 2 {
            halves[at + 18] = 0xbc;
        } else {
            halves.splice(at + 9..at + 18, [2, 0, 0, 0, 0, 0, 0, 0, 0xbc]);
        }
        refused(halves, says);
    }
    let mut truth = file(&[("k", true.into())], &[]);
    let at = behind(&truth, "k") + 4;
    truth[at] = 2;
    refused(truth, "k: expected 0 or 1 for a bool, found 2");
    refused(file(&[("k", 1u8.into()), ("k", 1u8.into())], &[]), "key k: expected one value, found several");
    let deep = (0..9).fold(Array::U8(vec![]), |a, _| Array::Arrays(vec![a]));
    refused(file(&[("k", Value::Array(deep))], &[]), "k: expected at most 8 arrays in one another");
    for alignment in [Value::from(0u32), 48u32.into(), (1u32 << 21).into(), "32".into()] {
        let mut bytes = header([("general.alignment", &Value::from(32u32))], []);
        bytes.truncate(behind(&bytes, "general.alignment"));
        bytes.extend(&header([("k", &alignment)], [])[24 + 9..]);
        refused(bytes, "general.alignment: expected a power of two of at most 1048576");
    }
}

#[test]
fn nonsense_in_the_tensor_table_is_named() {
    // The first tensor: x, one dimension of 3, F32, offset 0.
    let x = |b: &[u8]| behind(b, "a.count") + 8 + 8 + 1;
    refused(patched(x, &5u32.to_le_bytes()), "number of dimensions of tensor x: expected 1 to 4, found 5");
    refused(patched(x, &[0]), "number of dimensions of tensor x: expected 1 to 4, found 0");
    refused(patched(|b| x(b) + 4, &[0]), "dimensions of tensor x: expected sizes from 1");
    refused(patched(|b| x(b) + 4, &[0xff; 8]), "dimensions of tensor x: expected sizes from 1");
    refused(patched(|b| x(b) + 4, &(1u64 << 40).to_le_bytes()), "tensor x: expected 4398046511104 bytes");
    let iq = "type of tensor x: expected one of F32 (0), F16 (1), ";
    refused(patched(|b| x(b) + 12, &[16]), iq);
    refused(patched(|b| x(b) + 12, &[16]), "found 16 (IQ2_XXS), which is not supported");
    refused(patched(|b| x(b) + 12, &[0xff; 4]), "found 4294967295, which is not supported");
    refused(patched(|b| x(b) + 12, &[2]), "rows of a multiple of 32 elements for Q4_0, found 3");
    refused(patched(|b| x(b) + 16, &[4]), "offset of tensor x: expected a multiple of 32, found 4");
    refused(patched(|b| x(b) + 16, &(1u64 << 30).to_le_bytes()), "it is cut short or damaged");
    refused(patched(|b| x(b) + 16, &(!31u64).to_le_bytes()), "it is cut short or damaged");
    refused(
        patched(|b| x(b) + 16, &[64]),
        "offset of tensor x: expected bytes of its own, found some of tensor w's",
    );
    let twice: &[(&str, &str, &[i64])] = &[("x", "F32", &[3]), ("x", "F32", &[3])];
    refused(file(&[], twice), "tensor x: expected one of that name, found several");
}

#[test]
fn alignment_of_the_file_is_kept() {
    let metadata = [("general.alignment", Value::from(256u32))];
    let table = [("a", format("F32"), &[1i64][..]), ("b", format("F32"), &[1])];
    let mut bytes = header(metadata.iter().map(|(k, v)| (*k, v)), table);
    assert_eq!(bytes.len(), 256);
    bytes.extend(1f32.to_le_bytes());
    bytes.resize(512, 0);
    bytes.extend(2f32.to_le_bytes());
    let g = open(bytes).unwrap();
    assert_eq!(*g.bytes(g.tensor("b").unwrap(), 0..4).unwrap(), 2f32.to_le_bytes());
}

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("glimmer-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}
impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn part(no: u16, count: u16, tensors: i32, name: &str) -> Vec<u8> {
    let split =
        [("split.no", no.into()), ("split.count", count.into()), ("split.tensors.count", tensors.into())];
    file(&split, &[(name, "F32", &[2 + no as i64])])
}

#[test]
fn parts_make_one_model() {
    let dir = Folder::new("parts");
    let first = dir.write("m-00001-of-00002.gguf", &part(0, 2, 2, "a"));
    let error = Gguf::open(&first).unwrap_err().to_string();
    assert!(error.contains("m-00002-of-00002.gguf: part 2 of 2 is missing; put it beside "), "{error}");

    let second = dir.write("m-00002-of-00002.gguf", &part(1, 2, 2, "b"));
    for path in [&first, &second] {
        let g = Gguf::open(path).unwrap();
        assert_eq!(g.name(), first.display().to_string());
        assert_eq!(g.int("split.no").unwrap(), 0);
        let b = g.tensor("b").unwrap();
        assert_eq!(*g.bytes(b, 0..12).unwrap(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        g.release(b, 0..12);
    }
    let refused = |bytes: Vec<u8>, says: &str| {
        dir.write("m-00002-of-00002.gguf", &bytes);
        let error = Gguf::open(&first).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    };
    refused(part(0, 2, 2, "b"), "m-00002-of-00002.gguf: split.no: expected 1, found 0");
    refused(part(1, 3, 2, "b"), "m-00002-of-00002.gguf: split.count: expected 2, found 3");
    refused(file(&[], &[]), "m-00002-of-00002.gguf: split.count: expected 2, found 1");
    refused(part(1, 2, 2, "a"), "tensor a: expected one of that name");
    dir.write("m-00001-of-00002.gguf", &part(0, 2, 3, "a"));
    refused(part(1, 2, 3, "b"), "split.tensors.count: expected 3 tensors, found 2 in the 2 parts");
    let absurd = file(&[("split.count", (1i64 << 40).into())], &[]);
    let error = Gguf::open(&dir.write("m-00001-of-1099511627776.gguf", &absurd)).unwrap_err().to_string();
    assert!(error.contains("split.count: expected at most 99999, found 1099511627776"), "{error}");
    let renamed = dir.write("renamed.gguf", &part(0, 2, 2, "a"));
    let error = Gguf::open(&renamed).unwrap_err().to_string();
    assert!(error.contains("file name: expected one ending in \"-00001-of-00002.gguf\""), "{error}");
    assert!(open(part(0, 2, 2, "a")).unwrap_err().to_string().contains("split.count: expected 1, found 2"));
}

#[test]
fn models_are_shared_between_threads() {
    let g = open(small()).unwrap();
    let first = || g.bytes(&g.tensors()[1], 0..2).unwrap().to_vec();
    let got: Vec<_> =
        std::thread::scope(|s| [s.spawn(first), s.spawn(first)].map(|t| t.join().unwrap()).into());
    assert_eq!(got, [[0, 1], [0, 1]]);
}

#[test]
fn files_are_mapped_and_missing_ones_named() {
    let dir = Folder::new("mapped");
    let g = Gguf::open(&dir.write("m.gguf", &small())).unwrap();
    assert_eq!(g.tensors().len(), 2);
    assert!(matches!(g.bytes(&g.tensors()[0], 0..12), Ok(Cow::Borrowed(_))));
    assert!(Gguf::open(&dir.0).unwrap_err().to_string().ends_with(": not a regular file"));
    assert!(Gguf::open(&dir.0.join("none.gguf")).unwrap_err().to_string().contains("none.gguf: "));
    let empty = Gguf::open(&dir.write("empty.gguf", b"")).unwrap_err().to_string();
    assert!(empty.contains("magic: expected \"GGUF\", found \"\""), "{empty}");
}
