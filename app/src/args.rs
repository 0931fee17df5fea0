//! Every flag, parsed once into plain structs.

use clap::{Parser, Subcommand, ValueEnum};
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
    /// Measures speeds: `bench kernels`
    Bench(Bench),
    /// Runs the kernel table on a device and holds it against the interpreter
    Check(Check),
    /// Shows what the compiler makes of one kernel of the table
    Dump(Dump),
    /// Shows what a model holds and what running it takes
    #[command(after_help = INSPECT_EXAMPLES)]
    Inspect(Inspect),
    /// Writes a model of a known shape with random weights
    #[command(after_help = SYNTH_EXAMPLES)]
    Synth(Synth),
    /// Turns messages into the prompt that a model's chat template makes of them
    #[command(after_help = TEMPLATE_EXAMPLES)]
    Template(Template),
    /// Turns text into token ids, or ids into text
    #[command(after_help = TOKENIZE_EXAMPLES)]
    Tokenize(Tokenize),
}

#[derive(clap::Args, Clone)]
pub struct DeviceArgs {
    /// cpu, cuda, cuda:N or interp
    #[arg(long, default_value = "cpu")]
    pub device: DeviceName,
    /// CPU threads; the number of physical cores if not given
    #[arg(long)]
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

#[derive(clap::Args)]
pub struct Bench {
    #[arg(value_enum)]
    pub what: BenchWhat,
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
    /// One JSON document instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum BenchWhat {
    /// Rows of the kernel table on weights that no cache holds, beside the machine's read bandwidth
    Kernels,
}

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
