//! Connections. In: a socket. Out: each request answered, or refused; after a signal the connections end in order.
//!
//! No panic of a handler reaches a client: it is a status 500. A client that neither sends nor reads for `--timeout`
//! seconds loses its connection, and with it its answers.

use super::error::{Dialect, Refused, Result};
use super::http::{Content, Reply, Task};
use super::page;
use super::ready::Server;
use super::routes::{self, find};
use crate::args::DeviceName;
use hyper::body::Incoming;
use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_MAX_AGE, AUTHORIZATION, HOST, HeaderMap, HeaderValue, ORIGIN, VARY,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, Sleep, sleep};

/// Connections at the same time; more wait to be accepted.
const CONNECTIONS: usize = 1024;

/// Accepts until `stop` says so. What is returned is closed when every connection has ended.
pub async fn accept(
    listener: TcpListener,
    server: Arc<Server>,
    device: DeviceName,
    mut stop: watch::Receiver<bool>,
) -> tokio::sync::mpsc::Receiver<()> {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let (alive, ended) = tokio::sync::mpsc::channel(1);
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { break };
        let stream = tokio::select! {
            () = told(&mut stop) => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(_) => {
                    // Out of file descriptors, most likely: some will be free soon.
                    sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        let (server, stop, alive) = (server.clone(), stop.clone(), alive.clone());
        tokio::spawn(async move {
            server.counts.connections.fetch_add(1, Ordering::Relaxed);
            let of = server.clone();
            connection(stream, server, device, stop).await;
            of.counts.connections.fetch_sub(1, Ordering::Relaxed);
            drop((permit, alive));
        });
    }
    ended
}

async fn told(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|s| *s).await);
}

async fn connection(
    stream: TcpStream,
    server: Arc<Server>,
    device: DeviceName,
    mut stop: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    let patience = server.patience;
    let service = service_fn(move |request| {
        let server = server.clone();
        async move { Ok::<_, Infallible>(serve(server, device, request).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(patience).max_buf_size(64 << 10);
    let mut connection =
        pin!(builder.serve_connection(TokioIo::new(Patient::new(stream, patience)), service));
    tokio::select! {
        _ = connection.as_mut() => return,
        () = told(&mut stop) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

async fn serve(server: Arc<Server>, device: DeviceName, request: Request<Incoming>) -> Reply {
    server.counts.requests.fetch_add(1, Ordering::Relaxed);
    let (headers, method) = (request.headers().clone(), request.method().clone());
    let path = request.uri().path().to_string();
    let of = server.clone();
    let mut reply = match origin(&headers, &server) {
        Err(refused) => refused.reply(dialect(&path)),
        Ok(_) if method == Method::OPTIONS => preflight(),
        Ok(_) => {
            let task = Task::spawn(async move { routed(of, device, request).await });
            let answered = task.result().await.unwrap_or_else(|| Err(Refused::internal()));
            answered.unwrap_or_else(|refused| refused.reply(dialect(&path)))
        }
    };
    if let Ok(Some(allowed)) = origin(&headers, &server) {
        reply.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
        reply.headers_mut().insert(VARY, HeaderValue::from_static("Origin"));
    }
    if method == Method::HEAD {
        *reply.body_mut() = Content::Whole(None);
    }
    let class = reply.status().as_u16() as usize / 100 - 1;
    if let Some(count) = server.counts.statuses.get(class) {
        count.fetch_add(1, Ordering::Relaxed);
    }
    reply
}

fn dialect(path: &str) -> Dialect {
    if path.starts_with("/v1/messages") { Dialect::Anthropic } else { Dialect::OpenAi }
}

async fn routed(server: Arc<Server>, device: DeviceName, request: Request<Incoming>) -> Result<Reply> {
    let method = if request.method() == Method::HEAD { Method::GET } else { request.method().clone() };
    let path = request.uri().path().to_string();
    if let Some(file) = page::file(&path).filter(|_| method == Method::GET) {
        return Ok(file);
    }
    let (route, id) = find(&method, &path)?;
    if !route.open && !server.allows(key(request.headers())) {
        return Err(Refused::no_key());
    }
    routes::answer(server, device, route, id.to_string(), request).await
}

fn key(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(AUTHORIZATION).and_then(|v| v.as_bytes().split_at_checked(7));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer ")).map(|(_, key)| key);
    bearer.or_else(|| headers.get("x-api-key").map(HeaderValue::as_bytes))
}

/// Pages of other origins are refused unless --cors names them, whose name the answer then carries.
fn origin(headers: &HeaderMap, server: &Server) -> Result<Option<HeaderValue>> {
    let Some(origin) = headers.get(ORIGIN) else { return Ok(None) };
    let name = origin.to_str().unwrap_or("");
    if server.cors.iter().any(|o| o == "*") {
        return Ok(Some(HeaderValue::from_static("*")));
    }
    if server.cors.iter().any(|o| o.trim_end_matches('/') == name) {
        return Ok(Some(origin.clone()));
    }
    let host = headers.get(HOST).and_then(|h| h.to_str().ok()).unwrap_or("");
    let own = name.strip_prefix("http://").or(name.strip_prefix("https://")) == Some(host);
    if own && !host.is_empty() {
        return Ok(None);
    }
    let text = format!("pages of {name} may not use this server; --cors ORIGIN lets them");
    Err(Refused { code: Some("origin"), ..Refused::new(StatusCode::FORBIDDEN, text) })
}

fn preflight() -> Reply {
    let mut reply = Response::new(Content::Whole(None));
    *reply.status_mut() = StatusCode::NO_CONTENT;
    let headers = reply.headers_mut();
    let allowed = "authorization, content-type, x-api-key, anthropic-version, anthropic-beta";
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, OPTIONS"));
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(allowed));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    reply
}

/// A stream whose writes fail when the other side takes nothing for too long.
struct Patient {
    stream: TcpStream,
    patience: Duration,
    /// Runs while a write waits.
    waits: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    fn new(stream: TcpStream, patience: Duration) -> Patient {
        Patient { stream, patience, waits: None }
    }

    fn judge<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waits = None;
            return written;
        }
        let until = Instant::now() + self.patience;
        let waits = self.waits.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        match waits.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.judge(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    #[test]
    fn nobody_is_waited_for_who_reads_nothing() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let silent = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            let mut patient = Patient::new(stream, Duration::from_millis(100));
            let bytes = vec![0; 1 << 20];
            let began = Instant::now();
            let error = loop {
                let written = poll_fn(|context| Pin::new(&mut patient).poll_write(context, &bytes)).await;
                if let Err(error) = written {
                    break error;
                }
                assert!(began.elapsed() < Duration::from_secs(20), "no end");
            };
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            drop(silent);
        });
    }
}
