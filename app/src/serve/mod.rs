//! `glimmer serve`: a model behind HTTP. In: requests in the shapes of OpenAI's and Anthropic's APIs. Out: answers, whole or
//! as server-sent events; a chat page.
//!
//! Every endpoint makes an [`ask::Ask`] of its body and reads a [`talk::Talk`]; the engine has the model on a thread of
//! its own. The socket is open before the model is loaded.

mod ask;
mod blocks;
mod chat;
mod completions;
mod error;
mod fields;
mod http;
mod listen;
mod messages;
mod metrics;
mod openapi;
mod page;
mod ready;
mod responses;
mod routes;
mod talk;
mod tokens;

use crate::args::Serve;
use crate::model::{self, Origin};
use anyhow::{Context, Result, anyhow};
use llm::chat::Style;
use llm::engine::{Engine, Limits};
use llm::sample::Sampling;
use llm::size::Size;
use llm::tokenizer::Tokenizer;
use ready::{Ready, Server};
use std::io::ErrorKind;
use std::net::{TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

pub use ask::Ask;
pub use error::Refused;
pub use routes::{ROUTES, Route, What, understand};

/// How long running answers may take after a signal, and how long the connections behind them.
const GRACE: Duration = Duration::from_secs(5);
const LAST: Duration = Duration::from_secs(1);
/// Bytes that the cache takes unless --cache says otherwise or one answer needs more.
const CACHE: u64 = 4 << 30;

pub fn run(args: &Serve) -> Result<()> {
    let origin = model::origin(args.model.model.as_deref())?;
    let listener = bind(args)?;
    let server = Arc::new(Server::new(args, name(&origin)));
    eprintln!("glimmer: listening on http://{}", listener.local_addr()?);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let ended = std::thread::scope(|scope| {
        let (loaded, loading) = oneshot::channel();
        let of = &server;
        scope.spawn(move || drop(loaded.send(load(args, &origin, of))));
        let ended = runtime.block_on(serve(args, server.clone(), listener, loading));
        if ended.is_err() || server.if_ready().is_none() {
            // The loading thread looks at nothing: what it loads goes with the process.
            finish(&ended);
        }
        ended
    });
    runtime.shutdown_timeout(LAST);
    ended
}

/// Ends the process.
fn finish(ended: &Result<()>) -> ! {
    match ended {
        Ok(()) => std::process::exit(0),
        Err(e) => {
            eprintln!("glimmer: {e:#}");
            std::process::exit(1)
        }
    }
}

fn bind(args: &Serve) -> Result<TcpListener> {
    let place = format!("{}:{}", args.host, args.port);
    let addresses = (args.host.as_str(), args.port).to_socket_addrs();
    let addresses: Vec<_> =
        addresses.map_err(|e| anyhow!("--host {}: no such address: {e}", args.host))?.collect();
    let listener = TcpListener::bind(&addresses[..]).map_err(|e| match e.kind() {
        ErrorKind::AddrInUse => {
            anyhow!(
                "{place} is taken by another program; --port takes another one, --port 0 any that is free"
            )
        }
        ErrorKind::PermissionDenied => anyhow!("{place}: not allowed; ports from 1024 on need no rights"),
        ErrorKind::AddrNotAvailable => anyhow!("--host {}: this machine has no such address", args.host),
        _ => anyhow!("{place}: {e}"),
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// What the model is called in the API.
fn name(origin: &Origin) -> String {
    match origin {
        Origin::BuiltIn => "storyteller".into(),
        Origin::Synth(spec) => format!("synth:{spec}"),
        Origin::File(path) => path.file_stem().map_or("model".into(), |s| s.to_string_lossy().into_owned()),
    }
}

fn load(args: &Serve, origin: &Origin, server: &Server) -> Result<()> {
    let began = Instant::now();
    let file = origin.open()?;
    let tokenizer = Arc::new(Tokenizer::from_gguf(&file)?);
    let style = Style::from_gguf(&file, &tokenizer)?;
    let told = &mut |done, of| server.loaded(done, of);
    let sampling = Sampling::from_gguf(&file)?;
    let mut model = model::on_device_told(&args.model, file, args.model.ctx, false, told)?;
    let positions = cache(args, model.context(), &model.size()?);
    let room = || format!("no room for a cache of {positions} tokens; --cache takes fewer");
    model.reserve(positions).with_context(room)?;
    let limits = Limits { parallel: args.parallel, queue: args.queue };
    let engine = Engine::start(model, tokenizer, limits);
    let context = engine.context();
    server.set_ready(Ready::new(engine, style, server.id.clone(), args.parallel, sampling));
    let seconds = began.elapsed().as_secs_f64();
    eprintln!("glimmer: {} is ready after {seconds:.2} s, with a context of {context} tokens", server.id);
    Ok(())
}

/// Tokens that all answers' caches hold together.
fn cache(args: &Serve, context: usize, size: &Size) -> usize {
    let wanted = context.saturating_mul(args.parallel);
    let affordable = CACHE / size.kv_bytes(1).max(1);
    args.cache.unwrap_or(wanted.min(affordable as usize)).max(context)
}

async fn serve(
    args: &Serve,
    server: Arc<Server>,
    listener: TcpListener,
    mut loading: oneshot::Receiver<Result<()>>,
) -> Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let (stop, stopped) = watch::channel(false);
    let mut signals = Signals::new()?;
    let device = args.model.device.device;
    let accepting = tokio::spawn(listen::accept(listener, server.clone(), device, stopped));
    let mut loads = true;
    loop {
        tokio::select! {
            loaded = &mut loading, if loads => match loaded {
                Ok(Ok(())) => loads = false,
                Ok(Err(e)) => return Err(e),
                Err(_) => return Err(anyhow!("loading {} ended in an error of the program's own", server.id)),
            },
            () = signals.next() => break,
        }
    }
    eprintln!("glimmer: stopping");
    let _ = stop.send(true);
    tokio::spawn(async move {
        signals.next().await;
        std::process::exit(130);
    });
    let mut connections = accepting.await.context("the accepting task")?;
    if tokio::time::timeout(GRACE, connections.recv()).await.is_err() {
        eprintln!("glimmer: cancelling what is still running");
    }
    if let Some(ready) = server.if_ready().cloned() {
        let _ = tokio::task::spawn_blocking(move || ready.engine.stop()).await;
    }
    let _ = tokio::time::timeout(LAST, connections.recv()).await;
    Ok(())
}

/// Ctrl-C and, where there is one, the signal that asks a program to end.
struct Signals {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    #[cfg(unix)]
    fn new() -> Result<Signals> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    #[cfg(not(unix))]
    fn new() -> Result<Signals> {
        Ok(Signals {})
    }

    #[cfg(unix)]
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    #[cfg(not(unix))]
    async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
}
