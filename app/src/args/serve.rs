//! The flags of `glimmer serve`.

use super::{ModelArgs, at_least_one};

pub const EXAMPLES: &str = "Examples:
  glimmer serve
  glimmer serve glm-4.7-flash --ctx 32768 --parallel 4
  glimmer serve model.gguf --host 0.0.0.0 --port 9000 --api-key SECRET
  curl localhost:8080/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}'

The page is at http://localhost:8080/, the description of the API at /openapi.json. Ctrl-C ends the server when running answers
are done, at most five seconds later; a second one ends it at once.";

#[derive(clap::Args)]
pub struct Serve {
    #[command(flatten)]
    pub model: ModelArgs,
    /// The address to listen on; 0.0.0.0 for every one of this machine
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: String,
    /// The port to listen on; 0 for any that is free
    #[arg(long, default_value_t = 8080)]
    pub port: u16,
    /// Answer only requests that carry this key
    #[arg(long, value_name = "KEY", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub api_key: Option<String>,
    /// Pages of this origin may use the API from a browser, as in https://example.org; * for all; may be given several times
    #[arg(long, value_name = "ORIGIN")]
    pub cors: Vec<String>,
    /// Answers that are made at the same time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_least_one())]
    pub parallel: usize,
    /// Tokens that the caches of all answers hold together; --ctx for each of --parallel, but at most 4 GiB, if not given
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one())]
    pub cache: Option<usize>,
    /// Requests that may wait; more are refused with status 429
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one())]
    pub queue: usize,
    /// Bytes of a request's body at most
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20, value_parser = at_least_one())]
    pub max_body: usize,
    /// Give up on clients that send or read nothing for so long
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
}
