//! The chat page: the files of `page/`, which are part of the program. A path that is none of them is no page.

use super::http::{Reply, bytes};
use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY};

const FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/page.rs"));

/// Nothing from elsewhere, and nothing that is written inside the page, runs or loads.
const POLICY: &str = "default-src 'self'; img-src 'self' data:; object-src 'none'; frame-ancestors 'none'; \
                      base-uri 'none'; form-action 'none'";

pub fn file(path: &str) -> Option<Reply> {
    let name = if path == "/" { "index.html" } else { path.strip_prefix('/')? };
    let (_, content) = FILES.iter().find(|(n, _)| *n == name)?;
    let mut reply = bytes(StatusCode::OK, *content);
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind(name)));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Some(reply)
}

fn kind(name: &str) -> &'static str {
    match name.rsplit_once('.').map_or("", |(_, end)| end) {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "json" | "webmanifest" => "application/json",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_there_and_nothing_else() {
        assert!(file("/").is_some() && file("/index.html").is_some());
        for path in ["", "index.html", "/../page.rs", "//index.html", "/v1"] {
            assert!(file(path).is_none(), "{path}");
        }
    }
}
