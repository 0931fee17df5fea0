//! Any bytes as a model file: an error, or a sound model.
#![no_main]

#[path = "../../llm/tests/gguf/sound.rs"]
mod sound;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    sound::check(data);
});
