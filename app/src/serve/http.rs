//! Bytes on the wire. In: a request's body, within limits of size and time. Out: replies that are whole, or server-sent
//! events as they come.
//!
//! Dropping a streamed reply ends the task that fills it, and with it the answer.

use super::error::{Refused, Result};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::Value;
use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;

pub type Reply = Response<Content>;

pub enum Content {
    Whole(Option<Bytes>),
    Streamed { chunks: Receiver<Bytes>, _filler: Task<()> },
}

impl Body for Content {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Content::Whole(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            Content::Streamed { chunks, .. } => {
                chunks.poll_recv(context).map(|c| c.map(|b| Ok(Frame::data(b))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Content::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Content::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Content::Streamed { .. } => SizeHint::default(),
        }
    }
}

/// A task that ends when nobody waits for it any more.
pub struct Task<T>(JoinHandle<T>);

impl<T: Send + 'static> Task<T> {
    pub fn spawn(work: impl Future<Output = T> + Send + 'static) -> Task<T> {
        Task(tokio::spawn(work))
    }

    /// None if it panicked.
    pub async fn result(mut self) -> Option<T> {
        (&mut self.0).await.ok()
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Work that takes a processor for a while; a panic in it is an error of the server's.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Refused::internal())
}

/// The whole body, if it is not too large and does not take too long.
pub async fn body(incoming: Incoming, most: usize, patience: Duration) -> Result<Bytes> {
    let too_large = || {
        let text = format!("the body has more than {most} bytes; --max-body gives the limit");
        Refused { code: Some("body_too_large"), ..Refused::new(StatusCode::PAYLOAD_TOO_LARGE, text) }
    };
    if incoming.size_hint().lower() > most as u64 {
        return Err(too_large());
    }
    match tokio::time::timeout(patience, Limited::new(incoming, most).collect()).await {
        Err(_) => {
            let text = format!("the body did not come within {} seconds", patience.as_secs());
            Err(Refused::new(StatusCode::REQUEST_TIMEOUT, text))
        }
        Ok(Err(e)) if e.is::<http_body_util::LengthLimitError>() => Err(too_large()),
        Ok(Err(e)) => Err(Refused::bad(format!("the body broke off: {e}"))),
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
    }
}

pub fn bytes(status: StatusCode, content: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Content::Whole(Some(content.into())));
    *reply.status_mut() = status;
    reply.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    reply
}

pub fn text(status: StatusCode, kind: &'static str, content: String) -> Reply {
    let mut reply = bytes(status, content);
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}

pub fn json(status: StatusCode, value: &Value) -> Reply {
    text(status, "application/json", value.to_string())
}

/// After so long without an event a comment is sent, so that nobody between here and the client takes it for dead.
const IDLE: Duration = Duration::from_secs(10);

/// Where events are written.
pub struct Events(Sender<Bytes>);

/// Nobody reads any more.
pub struct Gone;

impl Events {
    /// `data: ...`
    pub async fn data(&self, value: &Value) -> std::result::Result<(), Gone> {
        self.write(format!("data: {value}\n\n")).await
    }

    /// `event: ...` and `data: ...`
    pub async fn named(&self, name: &str, value: &Value) -> std::result::Result<(), Gone> {
        self.write(format!("event: {name}\ndata: {value}\n\n")).await
    }

    pub async fn write(&self, text: String) -> std::result::Result<(), Gone> {
        self.0.send(Bytes::from(text)).await.map_err(|_| Gone)
    }
}

/// A reply of server-sent events that `fill` writes.
pub fn events<F>(fill: impl FnOnce(Events) -> F) -> Reply
where
    F: Future<Output = std::result::Result<(), Gone>> + Send + 'static,
{
    let (sender, chunks) = channel(16);
    let idle = Events(sender.clone());
    let filled = fill(Events(sender));
    let filler = Task::spawn(async move {
        let mut filled = pin!(filled);
        // The comments' sender goes with this task: the stream ends when it is filled.
        while tokio::time::timeout(IDLE, filled.as_mut()).await.is_err() {
            if idle.write(": waiting\n\n".into()).await.is_err() {
                return;
            }
        }
    });
    let mut reply = Response::new(Content::Streamed { chunks, _filler: filler });
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    reply
}
