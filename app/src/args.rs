//! Every flag, parsed once into plain structs.

use clap::{Parser, Subcommand, ValueEnum};
use runtime::cpu::Tier;
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
    /// A schedule for every row instead of the heuristic's, as the table prints it
    #[arg(long, conflicts_with = "tune")]
    pub schedule: Option<String>,
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
