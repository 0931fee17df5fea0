//! Requests that are refused. In: what is wrong. Out: a status and a body in the dialect of the endpoint.

use super::http::{Reply, json};
use hyper::StatusCode;
use hyper::header::{ALLOW, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use llm::engine::Refusal;
use serde_json::{Value, json};

#[derive(Debug)]
pub struct Refused {
    pub status: StatusCode,
    pub message: String,
    /// The field that is wrong.
    pub param: Option<String>,
    pub code: Option<&'static str>,
    /// Seconds after which another try makes sense.
    pub retry: Option<u16>,
    /// The method that the path has.
    pub allow: Option<&'static str>,
    /// Loading: how much is done.
    pub progress: Option<f32>,
}

pub type Result<T> = std::result::Result<T, Refused>;

/// Whose error bodies a client reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialect {
    OpenAi,
    Anthropic,
}

impl Refused {
    pub fn new(status: StatusCode, message: impl Into<String>) -> Refused {
        let message = message.into();
        Refused { status, message, param: None, code: None, retry: None, allow: None, progress: None }
    }

    /// A field has a value that cannot be.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Refused {
        let (param, message) = (param.into(), message.into());
        let message = format!("`{param}`: {message}");
        Refused { param: Some(param), ..Refused::new(StatusCode::BAD_REQUEST, message) }
    }

    pub fn bad(message: impl Into<String>) -> Refused {
        Refused::new(StatusCode::BAD_REQUEST, message)
    }

    /// An answer that the model could not end.
    pub fn failed(message: String) -> Refused {
        Refused::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    pub fn internal() -> Refused {
        let text = "the server met an error of its own; the request may be sent again";
        Refused::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    }

    pub fn loading(progress: f32) -> Refused {
        let new = Refused::new(StatusCode::SERVICE_UNAVAILABLE, "the model is being loaded");
        Refused { code: Some("loading"), retry: Some(1), progress: Some(progress), ..new }
    }

    pub fn no_key() -> Refused {
        let text =
            "a key is needed: `Authorization: Bearer KEY` or `x-api-key: KEY`, with the KEY of --api-key";
        Refused { code: Some("invalid_api_key"), ..Refused::new(StatusCode::UNAUTHORIZED, text) }
    }

    fn kind(&self, dialect: Dialect) -> &'static str {
        match (dialect, self.status.as_u16()) {
            (Dialect::OpenAi, 429) => "rate_limit_error",
            (Dialect::OpenAi, 503) => "service_unavailable_error",
            (Dialect::OpenAi, 500..) => "server_error",
            (Dialect::OpenAi, _) => "invalid_request_error",
            (Dialect::Anthropic, 401) => "authentication_error",
            (Dialect::Anthropic, 403) => "permission_error",
            (Dialect::Anthropic, 404) => "not_found_error",
            (Dialect::Anthropic, 413) => "request_too_large",
            (Dialect::Anthropic, 429) => "rate_limit_error",
            (Dialect::Anthropic, 503) => "overloaded_error",
            (Dialect::Anthropic, 500..) => "api_error",
            (Dialect::Anthropic, _) => "invalid_request_error",
        }
    }

    pub fn body(&self, dialect: Dialect) -> Value {
        let kind = self.kind(dialect);
        let mut body = match dialect {
            Dialect::OpenAi => json!({
                "error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}
            }),
            Dialect::Anthropic => {
                json!({"type": "error", "error": {"type": kind, "message": self.message}})
            }
        };
        if let Some(progress) = self.progress {
            body["status"] = "loading".into();
            body["progress"] = progress.into();
        }
        body
    }

    pub fn reply(&self, dialect: Dialect) -> Reply {
        let mut reply = json(self.status, &self.body(dialect));
        let headers = reply.headers_mut();
        if let Some(seconds) = self.retry {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        reply
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Refused {
        let message = refusal.to_string();
        let (status, code, retry) = match refusal {
            Refusal::Empty => (StatusCode::BAD_REQUEST, None, None),
            Refusal::TooLong { .. } => (StatusCode::BAD_REQUEST, Some("context_length_exceeded"), None),
            Refusal::Full { .. } => (StatusCode::TOO_MANY_REQUESTS, Some("queue_full"), Some(1)),
            Refusal::Busy => (StatusCode::CONFLICT, Some("busy"), Some(1)),
            Refusal::Stopped => (StatusCode::SERVICE_UNAVAILABLE, Some("stopping"), Some(5)),
        };
        Refused { code, retry, ..Refused::new(status, message) }
    }
}
