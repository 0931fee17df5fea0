//! Every flag, parsed once into plain structs.

mod serve;

pub use serve::Serve;

use crate::bench::cases::{Numbers, Test};
use clap::{Parser, Subcommand, ValueEnum};
use llm::weights::Activations;
use runtime::cpu::Tier;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Parser)]
#[command(
    name = "glimmer",
    version,
    about = "Runs large language models at the speed of the memory they sit in"
)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Measures speeds: of models, beside llama.cpp's if asked to, or of kernels
    #[command(after_help = BENCH_EXAMPLES)]
    Bench(Bench),
    /// Runs the kernel table on a device and holds it against the interpreter
    #[command(after_help = CHECK_EXAMPLES)]
    Check(Check),
    /// Shows what the compiler makes of one kernel of the table
    #[command(after_help = DUMP_EXAMPLES)]
    Dump(Dump),
    /// Shows what a model holds and what running it takes
    #[command(after_help = INSPECT_EXAMPLES)]
    Inspect(Inspect),
    /// Writes a model of a known shape with random weights
    #[command(after_help = SYNTH_EXAMPLES)]
    Synth(Synth),
    /// Talks with a model, or prints one answer
    #[command(after_help = RUN_EXAMPLES)]
    Run(Run),
    /// Answers over HTTP as OpenAI's and Anthropic's servers do, with a chat page
    #[command(after_help = serve::EXAMPLES)]
    Serve(Serve),
    /// Fetches a model from Hugging Face into the cache, and prints its path
    #[command(after_help = PULL_EXAMPLES)]
    Pull(Pull),
    /// Writes a model's logits for given tokens to a NumPy file
    #[command(after_help = LOGITS_EXAMPLES)]
    Logits(Logits),
    /// Measures how surprised a model is by a text, as llama.cpp does
    #[command(after_help = PERPLEXITY_EXAMPLES)]
    Perplexity(Perplexity),
    /// Shows where the time of a token goes: kernels, components, bandwidth
    #[command(after_help = PROFILE_EXAMPLES)]
    Profile(Profile),
    /// Lists the models that have names, and what is on this machine
    #[command(after_help = MODELS_EXAMPLES)]
    Models,
    /// Prints a completion script for a shell
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions { shell: clap_complete::Shell },
    /// Turns messages into the prompt that a model's chat template makes of them
    #[command(after_help = TEMPLATE_EXAMPLES)]
    Template(Template),
    /// Turns text into token ids, or ids into text
    #[command(after_help = TOKENIZE_EXAMPLES)]
    Tokenize(Tokenize),
    /// Searches for faster schedules of a model's kernels; later runs use what it finds
    #[command(after_help = TUNE_EXAMPLES)]
    Tune(Tune),
}

#[derive(clap::Args, Clone)]
pub struct DeviceArgs {
    /// cpu, cuda, cuda:N or interp
    #[arg(long, default_value = "cpu")]
    pub device: DeviceName,
    /// CPU threads; the number of physical cores if not given
    #[arg(long, value_parser = at_least_one())]
    pub threads: Option<usize>,
    /// Use no more of the CPU than this
    #[arg(long, value_enum)]
    pub tier: Option<TierName>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceName {
    Cpu,
    Cuda(usize),
    Interp,
}

impl FromStr for DeviceName {
    type Err = String;
    fn from_str(s: &str) -> Result<DeviceName, String> {
        match (s, s.strip_prefix("cuda:").map(str::parse)) {
            ("cpu", _) => Ok(DeviceName::Cpu),
            ("cuda", _) => Ok(DeviceName::Cuda(0)),
            ("interp", _) => Ok(DeviceName::Interp),
            (_, Some(Ok(n))) => Ok(DeviceName::Cuda(n)),
            _ => Err("expected cpu, cuda, cuda:N or interp".into()),
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub enum TierName {
    Avx2,
    Avx512,
    Avx512Vnni,
    Amx,
}

impl From<TierName> for Tier {
    fn from(t: TierName) -> Tier {
        match t {
            TierName::Avx2 => Tier::Avx2,
            TierName::Avx512 => Tier::Avx512,
            TierName::Avx512Vnni => Tier::Avx512Vnni,
            TierName::Amx => Tier::Amx,
        }
    }
}

const BENCH_EXAMPLES: &str = "Examples:
  glimmer bench
  glimmer bench model.gguf -p 128,512 -n 32 -d 0,4096 -r 5
  glimmer bench synth:glm-4.7-flash:q4_0 --test pp128,pp512,tg32,tg32@d4096 --format json
  glimmer bench model.gguf --against build-amx/bin/llama-bench --against build-avx512/bin/llama-bench
  glimmer bench kernels --filter Q4_0

-p, -n, -d and -t take several numbers, with commas or as ranges: 1,2,4 or 1-8 or 64-512+64 or 1-16*2.";

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct Bench {
    #[command(subcommand)]
    pub kernels: Option<BenchCommand>,
    #[command(flatten)]
    pub models: BenchModels,
}

#[derive(Subcommand)]
pub enum BenchCommand {
    /// Rows of the kernel table on weights that no cache holds, beside the machine's read bandwidth
    Kernels(BenchKernels),
}

#[derive(clap::Args)]
pub struct BenchModels {
    /// Paths of GGUF files, names (see `glimmer models`) or synth:NAME:QUANT; the built-in model if none is given
    #[arg(value_name = "MODEL")]
    pub models: Vec<String>,
    /// Tokens of a prompt; 0 for no such test
    #[arg(short, long, value_name = "TOKENS", default_value = "512")]
    pub prompt: Numbers,
    /// Tokens that are decoded one by one; 0 for no such test
    #[arg(short, value_name = "TOKENS", default_value = "128")]
    pub n: Numbers,
    /// Tokens that are in the cache before
    #[arg(short, long, value_name = "TOKENS", default_value = "0")]
    pub depth: Numbers,
    /// Tests by their names instead of all that -p, -n and -d make together, as in pp512,tg32@d4096; tg32x8 decodes 8 sequences at once
    #[arg(long = "test", value_name = "NAMES", value_delimiter = ',', conflicts_with_all = ["prompt", "n", "depth"])]
    pub tests: Vec<Test>,
    /// Timed runs of each test; the median is reported
    #[arg(short, long, value_name = "TIMES", default_value_t = 5, value_parser = at_least_one())]
    pub repeat: usize,
    /// CPU threads; the number of physical cores if not given
    #[arg(short, long)]
    pub threads: Option<Numbers>,
    /// cpu, cuda, cuda:N or interp; several with commas
    #[arg(long, value_delimiter = ',', default_value = "cpu")]
    pub device: Vec<DeviceName>,
    /// Use no more of the CPU than this
    #[arg(long, value_enum)]
    pub tier: Option<TierName>,
    /// How products of block-quantised weights are computed; f32 is exact, int8 the default where the device has it
    #[arg(long, value_enum)]
    pub activations: Option<ActivationsName>,
    /// llama.cpp's llama-bench, which runs alternately with the model; may be given several times, the best counts
    #[arg(long, value_name = "LLAMA_BENCH")]
    pub against: Vec<PathBuf>,
    /// Turns that the timed runs are spread over, each with the model loaded anew [default: as many as runs]
    #[arg(long, requires = "against", value_parser = at_least_one())]
    pub rounds: Option<usize>,
    #[arg(long, value_enum, default_value = "md")]
    pub format: BenchFormat,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchFormat {
    /// A table, as llama-bench prints it
    Md,
    Csv,
    /// One document with every single run and the machine
    Json,
    /// A line for each row of it
    Jsonl,
}

fn at_least_one() -> clap::builder::RangedU64ValueParser<usize> {
    clap::builder::RangedU64ValueParser::<usize>::new().range(1..)
}

#[derive(clap::Args)]
pub struct BenchKernels {
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Only rows whose name contains this, e.g. `Q4_0` or `gate_up`
    #[arg(long, default_value = "")]
    pub filter: String,
    /// Timed runs of each row; the median is reported
    #[arg(long, default_value_t = 9)]
    pub repeat: usize,
    /// Search for better schedules first, for at most this many seconds a row
    #[arg(long, value_name = "SECONDS")]
    pub tune: Option<u64>,
    /// A schedule for every row instead of the heuristic's, as the table prints it
    #[arg(long, conflicts_with = "tune")]
    pub schedule: Option<String>,
    /// One JSON document instead of a table
    #[arg(long)]
    pub json: bool,
}

const CHECK_EXAMPLES: &str = "Examples:
  glimmer check --filter Q4_0 --rows 64
  glimmer check --tier avx2 --schedules 100 --seed 7
  glimmer check --device cuda";

#[derive(clap::Args)]
pub struct Check {
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Only rows whose name contains this
    #[arg(long, default_value = "")]
    pub filter: String,
    /// Cut matrices to this many rows; 0 for whole ones
    #[arg(long, default_value_t = 0)]
    pub rows: i64,
    /// Random schedules of each row beside the heuristic's
    #[arg(long, default_value_t = 20)]
    pub schedules: usize,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

const DUMP_EXAMPLES: &str = "Examples:
  glimmer dump \"linear Q4_0 2048x5120 m1\"
  glimmer dump \"linear Q4_0 2048x5120 m1\" --tier avx2 --show kernel";

#[derive(clap::Args)]
pub struct Dump {
    /// The beginning of a row's name, e.g. `linear Q4_0 2048x5120 m1`
    pub row: String,
    #[command(flatten)]
    pub device: DeviceArgs,
    /// What to show: schedule, kernel (after every pass), linear, asm; several with commas
    #[arg(long, value_delimiter = ',', default_value = "schedule,asm")]
    pub show: Vec<DumpWhat>,
    /// A schedule instead of the heuristic's, as `schedule` prints it
    #[arg(long)]
    pub schedule: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DumpWhat {
    Schedule,
    Kernel,
    Linear,
    Asm,
}

const INSPECT_EXAMPLES: &str = "Examples:
  glimmer inspect model.gguf
  glimmer inspect synth:glm-4.7-flash:q4_0 --ctx 32768
  glimmer inspect model-00001-of-00003.gguf --tensors --json";

#[derive(clap::Args)]
pub struct Inspect {
    /// The path of a GGUF file or synth:NAME:QUANT; the built-in model if not given
    pub model: Option<String>,
    /// List every tensor
    #[arg(long)]
    pub tensors: bool,
    /// Context for which memory is counted; 4096 or the model's own if that is shorter
    #[arg(long, value_name = "POSITIONS")]
    pub ctx: Option<u64>,
    /// One JSON document instead of text
    #[arg(long)]
    pub json: bool,
}

const SYNTH_EXAMPLES: &str = "Examples:
  glimmer synth glm-4.7-flash:q4_0 glm.gguf
  glimmer synth deepseek-v2-lite:q4_k_m small.gguf --layers 4 --vocab 1024 --experts 8";

#[derive(clap::Args)]
pub struct Synth {
    /// NAME:QUANT, e.g. glm-4.7-flash:q4_0
    pub model: String,
    pub file: PathBuf,
    /// Layers, if not the published number
    #[arg(long)]
    pub layers: Option<i64>,
    /// Tokens of the vocabulary, if not the published number
    #[arg(long)]
    pub vocab: Option<i64>,
    /// Experts of a layer, if not the published number
    #[arg(long)]
    pub experts: Option<i64>,
}

/// A model on a device.
#[derive(clap::Args)]
pub struct ModelArgs {
    /// The path of a GGUF file, a name (see `glimmer models`) or synth:NAME:QUANT; the built-in model if not given
    pub model: Option<String>,
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Tokens that prompt and answer may have together; 4096 or the model's own if that is shorter
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one())]
    pub ctx: Option<usize>,
    /// How products of block-quantised weights are computed; f32 is exact, int8 the default where the device has it
    #[arg(long, value_enum)]
    pub activations: Option<ActivationsName>,
    /// First print what runs for one token to standard error: schedule, kernel, linear, asm; several with commas
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    pub dump: Vec<DumpWhat>,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum ActivationsName {
    Int8,
    F32,
}

impl From<ActivationsName> for Activations {
    fn from(name: ActivationsName) -> Activations {
        match name {
            ActivationsName::Int8 => Activations::Int8,
            ActivationsName::F32 => Activations::F32,
        }
    }
}

const RUN_EXAMPLES: &str = "Examples:
  glimmer run
  glimmer run -p \"Tell me a story about a dog.\"
  glimmer run model.gguf --ctx 16384 --system \"You are brief.\"
  glimmer run glm-4.7-flash --device cuda --temp 0.7 --top-p 1.0 --min-p 0.01
  glimmer run --raw -p \"Once upon a time\" -n 64 --seed 1
  glimmer run qwen3-4b --no-think --json < question.txt";

#[derive(clap::Args)]
pub struct Run {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Print one answer to this and end; standard input if that is no terminal
    #[arg(short, long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// Tokens of an answer at most
    #[arg(short, value_name = "TOKENS")]
    pub n: Option<usize>,
    /// Continue the text as it is, without the model's chat template
    #[arg(long, conflicts_with_all = ["system", "no_think"])]
    pub raw: bool,
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Ask for the answer without reasoning (`enable_thinking` in templates that know it)
    #[arg(long)]
    pub no_think: bool,
    /// One JSON object: text, reasoning, token ids, speeds, and why the answer ended
    #[arg(long)]
    pub json: bool,
    /// Temperature; 0 takes the most probable token [default: what the model recommends, or 0.8]
    #[arg(long, value_parser = not_negative, allow_negative_numbers = true)]
    pub temp: Option<f32>,
    /// Choose among the k most probable tokens; 0: among all [default: the model's, or 40]
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,
    /// Choose among the most probable tokens that have this probability together [default: the model's, or 0.95]
    #[arg(long, value_name = "P", value_parser = fraction, allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Choose among tokens this probable, relative to the most probable [default: the model's, or 0.05]
    #[arg(long, value_name = "P", value_parser = fraction, allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// Above 1: against repetition of the last 64 tokens [default: the model's, or 1]
    #[arg(long, value_name = "X", value_parser = positive, allow_negative_numbers = true)]
    pub repeat_penalty: Option<f32>,
    /// The same seed gives the same answer; another one each time if not given
    #[arg(long)]
    pub seed: Option<u64>,
    /// A text that ends the answer; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
}

fn not_negative(text: &str) -> Result<f32, String> {
    within(text, "a number that is not negative", |v| v >= 0.0)
}

fn positive(text: &str) -> Result<f32, String> {
    within(text, "a positive number", |v| v > 0.0)
}

fn fraction(text: &str) -> Result<f32, String> {
    within(text, "a number from 0 to 1", |v| (0.0..=1.0).contains(&v))
}

fn within(text: &str, expected: &str, fits: impl Fn(f32) -> bool) -> Result<f32, String> {
    text.parse()
        .ok()
        .filter(|v: &f32| v.is_finite() && fits(*v))
        .ok_or_else(|| format!("expected {expected}"))
}

const PULL_EXAMPLES: &str = "Examples:
  glimmer pull smollm2-135m
  glimmer pull glm-4.7-flash:q4_0
  glimmer pull hf:unsloth/Qwen3-4B-GGUF:Q8_0
  glimmer pull hf:bartowski/Llama-3.2-1B-Instruct-GGUF/Llama-3.2-1B-Instruct-Q4_0.gguf

A download that was broken off is continued. Files lie in $XDG_CACHE_HOME/glimmer or ~/.cache/glimmer.";

const MODELS_EXAMPLES: &str = "Examples:
  glimmer models";

const COMPLETIONS_EXAMPLES: &str = "Examples:
  glimmer completions bash > ~/.local/share/bash-completion/completions/glimmer
  glimmer completions zsh > ~/.zfunc/_glimmer
  glimmer completions fish > ~/.config/fish/completions/glimmer.fish";

#[derive(clap::Args)]
pub struct Pull {
    /// A known name (see `glimmer models`), NAME:QUANT, hf:OWNER/REPO:QUANT or hf:OWNER/REPO/FILE.gguf
    pub name: String,
    /// A mirror of huggingface.co
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
}

const LOGITS_EXAMPLES: &str = "Examples:
  glimmer logits model.gguf --tokens 1,15,27 --output logits.npy
  glimmer logits model.gguf --tokens @ids.txt --positions 0,100-163 --activations f32 --output logits.npy";

#[derive(clap::Args)]
pub struct Logits {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Token ids with commas, or @FILE that holds them
    #[arg(long)]
    pub tokens: String,
    /// Where to write f32 rows, one for each position
    #[arg(long, value_name = "FILE.npy")]
    pub output: PathBuf,
    /// Only these positions, as in 0,7,100-103
    #[arg(long)]
    pub positions: Option<String>,
    /// The drafting layer's logits: row i follows the hidden state of token i and token i + 1
    #[arg(long)]
    pub mtp: bool,
}

const PERPLEXITY_EXAMPLES: &str = "Examples:
  glimmer perplexity model.gguf -f text.txt
  glimmer perplexity model.gguf -f text.txt --chunk 512 --chunks 20 --activations f32";

#[derive(clap::Args)]
pub struct Perplexity {
    #[command(flatten)]
    pub model: ModelArgs,
    /// The text
    #[arg(short, long)]
    pub file: PathBuf,
    /// Tokens that are read at a time; the second half is scored
    #[arg(long, default_value_t = 512, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(4..))]
    pub chunk: usize,
    /// Most chunks
    #[arg(long)]
    pub chunks: Option<usize>,
    /// One JSON document instead of text
    #[arg(long)]
    pub json: bool,
}

const PROFILE_EXAMPLES: &str = "Examples:
  glimmer profile
  glimmer profile model.gguf --depth 4096 --top 5
  glimmer profile model.gguf --tokens 256 --html prompt.html
  glimmer profile model.gguf --sequences 8
  glimmer profile model.gguf --html token.html --trace token.json
  glimmer profile model.gguf --source 3 > kernel.txt

Launches are timed one by one, on a GPU as they run in a step, with the gaps between them; the step as it really runs is
timed beside them. A trace opens in ui.perfetto.dev.";

#[derive(clap::Args)]
pub struct Profile {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Tokens of a step: 1 for decoding, more for a chunk of a prompt
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1 << 20))]
    pub tokens: usize,
    /// Instead: one token of each of so many sequences, as the server's batches are
    #[arg(long, value_name = "N", conflicts_with = "tokens", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1 << 20))]
    pub sequences: Option<usize>,
    /// Positions that are filled before them
    #[arg(long, value_name = "POSITIONS", default_value_t = 0, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(..=1 << 20))]
    pub depth: usize,
    /// Timed steps; medians are reported
    #[arg(long, value_name = "STEPS", default_value_t = 9, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub repeat: usize,
    /// Only the kernels that take the most time
    #[arg(long, value_name = "N")]
    pub top: Option<usize>,
    /// Print one kernel's IR and code instead: its number or its name
    #[arg(long, value_name = "KERNEL", conflicts_with_all = ["json", "top", "trace", "html"])]
    pub source: Option<String>,
    /// One JSON document instead of tables
    #[arg(long)]
    pub json: bool,
    /// Also write the step as a trace for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Also write a page to look at in a browser
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// GB/s that the machine reads memory with, instead of measuring it
    #[arg(long, value_name = "GB/S", value_parser = speed)]
    pub bandwidth: Option<f64>,
}

fn speed(text: &str) -> Result<f64, String> {
    within(text, "a positive number", |v| v > 0.0).map(f64::from)
}

const TEMPLATE_EXAMPLES: &str = "Examples:
  glimmer template model.gguf --messages chat.json
  glimmer template chat_template.jinja --messages - < chat.json

FILE is like {\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"arguments\": {\"add_generation_prompt\": true}}.";

#[derive(clap::Args)]
pub struct Template {
    /// A model, or a file with a template
    #[arg(value_name = "MODEL_OR_JINJA")]
    pub template: String,
    /// A JSON object with `messages` and, if need be, the template's other `arguments`; - for standard input
    #[arg(long, value_name = "FILE")]
    pub messages: String,
}

const TOKENIZE_EXAMPLES: &str = "Examples:
  glimmer tokenize model.gguf 'Hello world'
  glimmer tokenize model.gguf --json < book.txt
  glimmer tokenize model.gguf --decode 9703,1879";

#[derive(clap::Args)]
pub struct Tokenize {
    /// The path of a GGUF file, one with nothing but a vocabulary among them
    pub model: String,
    /// The text; standard input if not given
    pub text: Option<String>,
    /// Take the texts of control tokens as text
    #[arg(long)]
    pub no_special: bool,
    /// Print the text of these ids
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with_all = ["text", "no_special"])]
    pub decode: Option<Vec<u32>>,
    /// Print one JSON object, {"ids": [...]} or {"text": "..."}
    #[arg(long)]
    pub json: bool,
}

const TUNE_EXAMPLES: &str = "Examples:
  glimmer tune
  glimmer tune model.gguf --time 600
  glimmer tune model.gguf --tokens 1,64,256 --depth 1024
  glimmer tune model.gguf --sequences 8,32
  glimmer tune model.gguf --device cuda --export tuned.txt

What is found lies in $XDG_CACHE_HOME/glimmer or ~/.cache/glimmer, by kernel and processor, and is used by every command that
runs a model. It is saved kernel by kernel: breaking off loses little.";

#[derive(clap::Args)]
pub struct Tune {
    #[command(flatten)]
    pub model: ModelArgs,
    /// For the search; loading and the measurements before and after come on top
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(..=1 << 20))]
    pub time: u64,
    /// Tokens of the steps that are tuned: 1 for decoding, more for chunks of a prompt; several with commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1 << 20))]
    pub tokens: Vec<usize>,
    /// Instead: steps with one token of each of so many sequences, as the server's batches are; several with commas
    #[arg(long, value_name = "N", conflicts_with = "tokens", value_delimiter = ',', value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1 << 20))]
    pub sequences: Vec<usize>,
    /// Positions that are filled before them
    #[arg(long, value_name = "POSITIONS", default_value_t = 256, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(..=1 << 20))]
    pub depth: usize,
    /// Also write all schedules that are known, as the table that is built into the program
    #[arg(long, value_name = "FILE")]
    pub export: Option<PathBuf>,
    /// One JSON document instead of a table
    #[arg(long)]
    pub json: bool,
}
