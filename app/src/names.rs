//! Names of models. In: `glm-4.7-flash`, `glm-4.7-flash:q8_0`, `hf:OWNER/REPO:Q4_K_M` or `hf:OWNER/REPO/FILE.gguf`. Out: a
//! repository on Hugging Face and which of its files, and where they lie here once fetched.
//!
//! A file lies at its final place only whole and verified; see `fetch`.

use anyhow::{Context, Result, anyhow, bail};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

pub struct Known {
    pub name: &'static str,
    pub repo: &'static str,
    /// Of the file that the bare name means.
    pub quant: &'static str,
    pub bytes: u64,
    pub about: &'static str,
}

/// Sizes are of the default file as published.
pub const KNOWN: &[Known] = &[
    known(
        "glm-4.7-flash",
        "unsloth/GLM-4.7-Flash-GGUF",
        "Q4_K_M",
        18_300,
        "30B MoE, 3B active, MLA; reasons",
    ),
    known(
        "deepseek-v2-lite",
        "second-state/DeepSeek-V2-Lite-Chat-GGUF",
        "Q4_K_M",
        10_400,
        "16B MoE, 2.4B active, MLA",
    ),
    known("youtu-llm-2b", "tencent/Youtu-LLM-2B-GGUF", "Q8_0", 2_100, "2B dense, MLA; reasons"),
    known("qwen3-30b-a3b", "unsloth/Qwen3-30B-A3B-GGUF", "Q4_K_M", 18_600, "30B MoE, 3B active; reasons"),
    known("qwen3-8b", "unsloth/Qwen3-8B-GGUF", "Q4_K_M", 5_030, "8B dense; reasons"),
    known("qwen3-4b", "unsloth/Qwen3-4B-GGUF", "Q4_K_M", 2_500, "4B dense; reasons"),
    known("qwen3-0.6b", "unsloth/Qwen3-0.6B-GGUF", "Q4_K_M", 397, "0.6B dense; reasons"),
    known(
        "qwen2.5-coder-1.5b",
        "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        "Q4_K_M",
        1_120,
        "1.5B dense, for code",
    ),
    known("llama-3.1-8b", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "Q4_K_M", 4_920, "8B dense"),
    known("llama-3.2-3b", "bartowski/Llama-3.2-3B-Instruct-GGUF", "Q4_K_M", 2_020, "3B dense"),
    known("llama-3.2-1b", "bartowski/Llama-3.2-1B-Instruct-GGUF", "Q4_K_M", 808, "1B dense"),
    known("smollm2-135m", "bartowski/SmolLM2-135M-Instruct-GGUF", "Q4_K_M", 105, "135M dense"),
];

const fn known(
    name: &'static str,
    repo: &'static str,
    quant: &'static str,
    megabytes: u64,
    about: &'static str,
) -> Known {
    Known { name, repo, quant, bytes: megabytes * 1_000_000, about }
}

/// Files of a repository.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// OWNER/REPO
    pub repo: String,
    pub choice: Choice,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Choice {
    /// The file of this quantisation, or all parts of it.
    Quant(String),
    /// This file, or all parts of the model that it is a part of.
    File(String),
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match &self.choice {
            Choice::Quant(quant) => write!(f, "hf:{}:{quant}", self.repo),
            Choice::File(file) => write!(f, "hf:{}/{file}", self.repo),
        }
    }
}

/// What a name means; None if it has not the form of one. A known name with an odd tag is a name.
pub fn parse(name: &str) -> Option<Result<Wanted>> {
    if let Some(rest) = name.strip_prefix("hf:") {
        return Some(published(rest).with_context(|| format!("`{name}`")));
    }
    let (base, quant) = match name.split_once(':') {
        Some((base, quant)) => (base, Some(quant)),
        None => (name, None),
    };
    let known = KNOWN.iter().find(|k| k.name.eq_ignore_ascii_case(base))?;
    let quant = quant.unwrap_or(known.quant).to_uppercase();
    Some(match is_word(&quant) {
        true => Ok(Wanted { repo: known.repo.into(), choice: Choice::Quant(quant) }),
        false => {
            Err(anyhow!("`{name}`: a quantisation is expected after the colon, e.g. {}:q8_0", known.name))
        }
    })
}

/// OWNER/REPO:QUANT or OWNER/REPO/FILE. Nothing in it may lead out of the directory of the repository.
fn published(rest: &str) -> Result<Wanted> {
    let form = "expected hf:OWNER/REPO:QUANT or hf:OWNER/REPO/FILE.gguf";
    let mut parts = rest.splitn(3, '/');
    let (owner, repo, file) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""), parts.next());
    let (repo, choice) = match (file, repo.split_once(':')) {
        (Some(file), None) if safe(file) && file.ends_with(".gguf") => (repo, Choice::File(file.into())),
        (None, Some((repo, quant))) if is_word(quant) => (repo, Choice::Quant(quant.to_uppercase())),
        _ => bail!("{form}"),
    };
    if !is_word(owner) || !is_word(repo) {
        bail!("{form}");
    }
    Ok(Wanted { repo: format!("{owner}/{repo}"), choice })
}

fn is_word(s: &str) -> bool {
    !s.is_empty() && !s.starts_with('.') && s.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// Whether a path of a repository may become a path here.
pub fn safe(path: &str) -> bool {
    path.split('/')
        .all(|part| !part.is_empty() && !part.starts_with('.') && !part.contains(['\\', ':', '\0']))
}

impl Wanted {
    /// Of the paths of a repository, those of the wanted model, parts in order; empty if there is none.
    pub fn among<'a>(&self, paths: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
        let mut found: Vec<&str> = paths.filter(|p| self.matches(p)).collect();
        // `-Q4_K_M` also ends `-UD-Q4_K_M`: the shortest is the one without further words.
        let Some(shortest) = found.iter().map(|p| whole(p).0).min_by_key(|w| (w.len(), w.to_string())) else {
            return vec![];
        };
        found.retain(|p| whole(p).0 == shortest);
        found.sort_unstable();
        found
    }

    fn matches(&self, path: &str) -> bool {
        let (stem, _) = whole(path);
        match &self.choice {
            Choice::File(file) => path.ends_with(".gguf") && stem == whole(file).0,
            Choice::Quant(_) => quant_of(path).is_some_and(|q| self.choice == Choice::Quant(q)),
        }
    }

    pub fn dir(&self, cache: &Path) -> PathBuf {
        cache.join("models").join(&self.repo)
    }

    /// The model's first file, if all of it is here.
    pub fn here(&self, cache: &Path) -> Option<PathBuf> {
        let dir = self.dir(cache);
        let files = files(&dir);
        let mine = self.among(files.iter().map(|(path, _)| path.as_str()));
        let first = mine.first()?;
        (mine.len() == whole(first).1).then(|| dir.join(first))
    }
}

/// A model's path without the number of the part and the ending, and how many parts there are.
fn whole(path: &str) -> (&str, usize) {
    let stem = path.strip_suffix(".gguf").unwrap_or(path);
    let parts = || {
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (rest, number) = rest.rsplit_once('-')?;
        let digits = |s: &str| s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit());
        (digits(number) && digits(count)).then(|| (rest, count.parse().unwrap_or(1)))
    };
    parts().unwrap_or((stem, 1))
}

/// The quantisation that a file's name ends in, in capitals; None for what is no model.
pub fn quant_of(path: &str) -> Option<String> {
    let name = path.rsplit('/').next().unwrap_or(path);
    if !name.ends_with(".gguf") || name.starts_with("mmproj") || name.contains("imatrix") {
        return None;
    }
    let (stem, _) = whole(name);
    let (_, quant) = stem.rsplit_once(['-', '.'])?;
    let quant = quant.to_uppercase();
    let begins = |p: &str| quant.strip_prefix(p).is_some_and(|r| r.starts_with(|c: char| c.is_ascii_digit()));
    (begins("Q") || begins("IQ") || begins("F") || begins("BF") || begins("TQ")).then_some(quant)
}

/// GGUF files below a directory with their sizes, by path with slashes.
pub fn files(dir: &Path) -> Vec<(String, u64)> {
    fn walk(dir: &Path, prefix: &str, out: &mut Vec<(String, u64)>) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
            match entry.metadata() {
                Ok(m) if m.is_dir() => walk(&entry.path(), &format!("{path}/"), out),
                Ok(m) if path.ends_with(".gguf") => out.push((path, m.len())),
                _ => {}
            }
        }
    }
    let mut out = vec![];
    walk(dir, "", &mut out);
    out.sort_unstable();
    out
}

/// Where the program keeps what it fetched, tuned and remembered: `$XDG_CACHE_HOME/glimmer`, or `~/.cache/glimmer`.
pub fn cache_dir() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").filter(|p| p.is_absolute());
    let base = base.or_else(|| set("HOME").map(|h| h.join(".cache"))).or_else(|| set("LOCALAPPDATA"));
    let base = base.context("no place for the cache: neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(base.join("glimmer"))
}

/// The file that a name stands for; None if it has not the form of a name.
pub fn local_path(name: &str) -> Option<Result<PathBuf>> {
    let found = parse(name)?.and_then(|wanted| {
        let size = KNOWN.iter().find(|k| k.name.eq_ignore_ascii_case(name)).map(|k| show_bytes(k.bytes));
        let size = size.map_or(String::new(), |s| format!(" ({s})"));
        wanted.here(&cache_dir()?).with_context(|| {
            format!(
                "{name} is not on this machine; `glimmer pull {name}` fetches it from huggingface.co{size}"
            )
        })
    });
    Some(found)
}

/// Decimal, as shops and download pages write sizes.
pub fn show_bytes(bytes: u64) -> String {
    match bytes {
        1_000_000_000.. => format!("{:.1} GB", bytes as f64 / 1e9),
        1_000_000.. => format!("{:.0} MB", bytes as f64 / 1e6),
        _ => format!("{:.0} kB", bytes as f64 / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quant(repo: &str, quant: &str) -> Wanted {
        Wanted { repo: repo.into(), choice: Choice::Quant(quant.into()) }
    }

    #[test]
    fn names_mean_repositories() {
        let ok = |name| parse(name).unwrap().unwrap();
        assert_eq!(ok("glm-4.7-flash"), quant("unsloth/GLM-4.7-Flash-GGUF", "Q4_K_M"));
        assert_eq!(ok("GLM-4.7-Flash:q8_0"), quant("unsloth/GLM-4.7-Flash-GGUF", "Q8_0"));
        assert_eq!(ok("hf:a/b:iq4_xs"), quant("a/b", "IQ4_XS"));
        let file = Choice::File("Q4/x-00001-of-00002.gguf".into());
        assert_eq!(ok("hf:a/b/Q4/x-00001-of-00002.gguf"), Wanted { repo: "a/b".into(), choice: file });
        assert!(parse("model.gguf").is_none() && parse("synth:glm-4.7-flash:q4_0").is_none());
        for bad in [
            "hf:a",
            "hf:a/b",
            "hf:a/b/c.txt",
            "hf:../b/c.gguf",
            "hf:a/b/../c.gguf",
            "hf:a/b//c.gguf",
            "hf:a/b:",
            "glm-4.7-flash:",
            "glm-4.7-flash:a/b",
        ] {
            assert!(parse(bad).unwrap().is_err(), "{bad}");
        }
    }

    #[test]
    fn every_known_name_is_well_formed() {
        for k in KNOWN {
            let wanted = parse(k.name).unwrap().unwrap();
            assert_eq!(parse(&wanted.to_string()).unwrap().unwrap(), wanted);
            assert_eq!(wanted, quant(k.repo, k.quant));
            assert_eq!(KNOWN.iter().filter(|o| o.name == k.name).count(), 1);
        }
    }

    #[test]
    fn files_are_chosen_by_quantisation() {
        let repo = [
            "README.md",
            "GLM-4.7-Flash-Q4_K_M.gguf",
            "GLM-4.7-Flash-UD-Q4_K_M.gguf",
            "GLM-4.7-Flash-Q4_0.gguf",
            "BF16/GLM-4.7-Flash-BF16-00002-of-00002.gguf",
            "BF16/GLM-4.7-Flash-BF16-00001-of-00002.gguf",
            "mmproj-F16.gguf",
            "imatrix_unsloth.gguf",
        ];
        let among = |w: Wanted| w.among(repo.into_iter()).join(" ");
        assert_eq!(among(quant("a/b", "Q4_K_M")), "GLM-4.7-Flash-Q4_K_M.gguf");
        let both = "BF16/GLM-4.7-Flash-BF16-00001-of-00002.gguf BF16/GLM-4.7-Flash-BF16-00002-of-00002.gguf";
        assert_eq!(among(quant("a/b", "BF16")), both);
        let second = Choice::File("BF16/GLM-4.7-Flash-BF16-00002-of-00002.gguf".into());
        assert_eq!(among(Wanted { repo: "a/b".into(), choice: second }), both);
        assert_eq!(among(quant("a/b", "F16")), "");
        assert_eq!(quant_of("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf").as_deref(), Some("Q4_K_M"));
        assert_eq!(quant_of("DeepSeek-V2-Lite.IQ4_XS.gguf").as_deref(), Some("IQ4_XS"));
        assert_eq!(quant_of("model-Final.gguf"), None);
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!([18_300_000_000, 397_000_000, 4_000].map(show_bytes), ["18.3 GB", "397 MB", "4 kB"]);
    }
}
