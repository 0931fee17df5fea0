//! Any bytes as the body of a request to any endpoint: understood, or refused in words.
#![no_main]

use app::serve::{ROUTES, understand};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    for route in ROUTES.iter().filter(|r| r.method == "POST") {
        if let Err(refused) = understand(route.what, data, 1000) {
            assert!(refused.status.is_client_error() && !refused.message.is_empty());
        }
    }
});
