//! Which request goes where. In: a method and a path. Out: an entry of [`ROUTES`], the one table that answers, the
//! description at `/openapi.json` and the tests are made from.

use super::error::{Refused, Result};
use super::fields::{Facts, document};
use super::http::{Reply, blocking, body, json, text};
use super::ready::Server;
use super::{ask, chat, completions, messages, metrics, openapi, responses, tokens};
use crate::args::DeviceName;
use crate::profile;
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;

/// What is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    Chat,
    Completions,
    Messages,
    CountTokens,
    Responses,
    Models,
    Model,
    Tokenize,
    Detokenize,
    Health,
    Metrics,
    Profile,
    OpenApi,
}

pub struct Route {
    pub what: What,
    pub method: &'static str,
    /// `{id}` at the end stands for anything.
    pub path: &'static str,
    pub summary: &'static str,
    /// Needs no key.
    pub open: bool,
}

const fn get(what: What, path: &'static str, summary: &'static str) -> Route {
    Route { what, method: "GET", path, summary, open: false }
}

const fn post(what: What, path: &'static str, summary: &'static str) -> Route {
    Route { what, method: "POST", path, summary, open: false }
}

const fn open(route: Route) -> Route {
    Route { open: true, ..route }
}

pub static ROUTES: &[Route] = &[
    post(What::Chat, "/v1/chat/completions", "Answers a conversation (OpenAI)"),
    post(What::Completions, "/v1/completions", "Continues a text (OpenAI)"),
    post(What::Responses, "/v1/responses", "Answers a conversation (OpenAI's responses)"),
    post(What::Messages, "/v1/messages", "Answers a conversation (Anthropic)"),
    post(What::CountTokens, "/v1/messages/count_tokens", "Counts the tokens of a conversation (Anthropic)"),
    get(What::Models, "/v1/models", "Lists the model"),
    get(What::Model, "/v1/models/{id}", "Describes the model"),
    post(What::Tokenize, "/tokenize", "Turns text into token ids"),
    post(What::Detokenize, "/detokenize", "Turns token ids into text"),
    open(get(What::Health, "/health", "Says whether the model is loaded")),
    get(What::Metrics, "/metrics", "Counters and gauges in Prometheus' form"),
    get(What::Profile, "/profile", "Measures where the time of a token goes, while nothing else runs"),
    open(get(What::OpenApi, "/openapi.json", "This description")),
];

impl Route {
    /// What stands for `{id}`.
    fn matches<'a>(&self, path: &'a str) -> Option<&'a str> {
        match self.path.strip_suffix("{id}") {
            None => (self.path == path).then_some(""),
            Some(prefix) => path.strip_prefix(prefix).filter(|rest| !rest.is_empty()),
        }
    }
}

/// The entry and what stands for `{id}`. A path has one method.
pub fn find<'a>(method: &Method, path: &'a str) -> Result<(&'static Route, &'a str)> {
    let with_path = ROUTES.iter().find_map(|r| r.matches(path).map(|id| (r, id)));
    let Some((route, id)) = with_path else {
        let text = format!("there is nothing at {path}; /openapi.json says what there is");
        return Err(Refused { code: Some("not_found"), ..Refused::new(StatusCode::NOT_FOUND, text) });
    };
    if *method == route.method {
        return Ok((route, id));
    }
    let allow = route.method;
    let text = format!("{path} answers {allow}, not {method}");
    let refused = Refused::new(StatusCode::METHOD_NOT_ALLOWED, text);
    Err(Refused { code: Some("method_not_allowed"), allow: Some(allow), ..refused })
}

pub async fn answer(
    server: Arc<Server>,
    device: DeviceName,
    route: &'static Route,
    id: String,
    request: Request<Incoming>,
) -> Result<Reply> {
    let query = request.uri().query().unwrap_or("").to_string();
    let given = match route.method == "POST" {
        true => document(&body(request.into_body(), server.max_body, server.patience).await?)?,
        false => Value::Null,
    };
    match route.what {
        What::Chat => chat::answer(given, server.ready()?).await,
        What::Completions => completions::answer(given, server.ready()?).await,
        What::Messages => messages::answer(given, server.ready()?).await,
        What::CountTokens => messages::count(given, server.ready()?).await,
        What::Responses => responses::answer(given, server.ready()?).await,
        What::Tokenize => tokens::tokenize(given, server.ready()?).await,
        What::Detokenize => tokens::detokenize(given, server.ready()?).await,
        What::Models => Ok(json(StatusCode::OK, &json!({"object": "list", "data": [model(&server)]}))),
        What::Model if id == server.id => Ok(json(StatusCode::OK, &model(&server))),
        What::Model => {
            let text = format!("the only model here is {:?}", server.id);
            Err(Refused { code: Some("model_not_found"), ..Refused::new(StatusCode::NOT_FOUND, text) })
        }
        What::Health => Ok(health(&server)),
        What::Metrics => {
            let page = metrics::text(&server);
            Ok(text(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", page))
        }
        What::Profile => measure(&server, device, &query).await,
        What::OpenApi => Ok(json(StatusCode::OK, &openapi::description())),
    }
}

fn model(server: &Server) -> Value {
    let mut value =
        json!({"id": server.id, "object": "model", "created": server.started, "owned_by": "glimmer"});
    if let Some(ready) = server.if_ready() {
        value["context_length"] = ready.engine.context().into();
        value["supports_tools"] = ready.style.is_some().into();
        value["supports_thinking"] = ready.thinks().into();
    }
    value
}

fn health(server: &Server) -> Reply {
    match server.if_ready() {
        Some(ready) => json(
            StatusCode::OK,
            &json!({
                "status": "ready", "model": server.id, "context": ready.engine.context(),
                "parallel": ready.parallel,
            }),
        ),
        None => json(
            StatusCode::SERVICE_UNAVAILABLE,
            &json!({"status": "loading", "progress": server.progress(), "model": server.id}),
        ),
    }
}

async fn measure(server: &Server, device: DeviceName, query: &str) -> Result<Reply> {
    let ready = server.ready()?;
    let depth = query.split('&').find_map(|pair| pair.strip_prefix("depth="));
    let most = ready.engine.context() - 1;
    let depth = match depth.map(str::parse::<usize>) {
        None => 0,
        Some(Ok(depth)) if depth <= most => depth,
        Some(_) => return Err(Refused::field("depth", format!("expected a number from 0 to {most}"))),
    };
    let found = blocking(move || {
        ready
            .engine
            .inspect(move |model| profile::decoding(model, device, depth).map_err(|e| format!("{e:#}")))
    })
    .await??;
    match found {
        Ok(report) => Ok(json(StatusCode::OK, &report)),
        Err(text) => Err(Refused::new(StatusCode::INTERNAL_SERVER_ERROR, text)),
    }
}

/// Reads a body as its endpoint would, for a model of `vocab` tokens that recommends nothing.
pub fn understand(what: What, body: &[u8], vocab: usize) -> Result<Vec<ask::Ask>> {
    let (given, of) = (document(body)?, Facts::plain(vocab));
    Ok(match what {
        What::Chat => vec![chat::parse(&given, &of)?.0],
        What::Completions => completions::parse(&given, &of)?.0,
        What::Messages => vec![messages::parse(&given, &of, false)?.0],
        What::CountTokens => vec![messages::parse(&given, &of, true)?.0],
        What::Responses => vec![responses::parse(&given, &of)?.0],
        What::Tokenize => tokens::parse_tokenize(&given).map(|()| vec![])?,
        What::Detokenize => tokens::parse_detokenize(&given).map(|()| vec![])?,
        _ => vec![],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_methods() {
        let what =
            |method, path| find(&method, path).map(|(r, id)| (r.what, id)).map_err(|e| e.status.as_u16());
        assert_eq!(what(Method::POST, "/v1/chat/completions"), Ok((What::Chat, "")));
        assert_eq!(what(Method::GET, "/v1/models"), Ok((What::Models, "")));
        assert_eq!(what(Method::GET, "/v1/models/a/b"), Ok((What::Model, "a/b")));
        assert_eq!(what(Method::GET, "/v1/models/"), Err(404));
        assert_eq!(what(Method::GET, "/v1/chat/completions"), Err(405));
        assert_eq!(what(Method::DELETE, "/health"), Err(405));
        assert_eq!(what(Method::GET, "/v2"), Err(404));
    }
}
