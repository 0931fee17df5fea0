//! Files from Hugging Face. In: a repository and which of its files. Out: the files, whole and verified, in the cache.
//!
//! A file is written beside its place under a name with its checksum in it, and moved there once the checksum agrees;
//! what was fetched before a broken connection is kept and continued.
//!
//! Why not the crate `hf-hub`: it does not compare checksums, keeps files in a layout of its own with links, and
//! version 1 needs 326 packages, an async runtime among them. What is needed is two kinds of requests: the list of a
//! repository's files with sizes and SHA-256 sums, and a range of a file.

use crate::names::{self, Choice, Wanted};
use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

pub const HUGGING_FACE: &str = "https://huggingface.co";

/// Attempts in a row that bring nothing.
const TRIES: u32 = 5;

pub struct Hub {
    agent: ureq::Agent,
    endpoint: String,
    /// Before the second attempt; doubled for each further one.
    pause: Duration,
}

/// One file to fetch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remote {
    /// In the repository.
    pub path: String,
    pub bytes: u64,
    pub sha256: String,
}

/// An entry of the list of a repository's files.
#[derive(Deserialize)]
struct Entry {
    path: String,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    /// SHA-256 of the content.
    oid: String,
    size: u64,
}

/// Why an attempt failed: whether another one may help.
enum Failure {
    Passing(anyhow::Error),
    Final(anyhow::Error),
}

impl Hub {
    pub fn new(endpoint: &str, pause: Duration) -> Hub {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(15)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .timeout_per_read(Some(Duration::from_secs(60)))
            .user_agent(concat!("glimmer/", env!("CARGO_PKG_VERSION")))
            .build();
        Hub { agent: config.into(), endpoint: endpoint.trim_end_matches('/').into(), pause }
    }

    /// The files of a model, in the order of its parts.
    pub fn list(&self, wanted: &Wanted) -> Result<Vec<Remote>> {
        let url = format!("{}/api/models/{}/tree/main?recursive=true", self.endpoint, wanted.repo);
        let mut patience = self.patience();
        let text = loop {
            // Only a busy server is asked again: without a connection the answer should come soon.
            let mut response = self.get(&url, &wanted.repo, 0)?;
            match response.status().as_u16() {
                200 => break response.body_mut().read_to_string().with_context(|| url.clone())?,
                status => patience.again(false, refused(status, &url, &wanted.repo))?,
            }
        };
        let entries: Vec<Entry> = serde_json::from_str(&text)
            .with_context(|| format!("{url}: the answer is no list of files; is a proxy in between?"))?;
        let found = wanted.among(entries.iter().map(|e| e.path.as_str()));
        if found.is_empty() {
            return Err(nothing(wanted, &entries));
        }
        let entry = |path: &&str| entries.iter().find(|e| e.path == *path).map(remote);
        found.iter().filter_map(entry).collect()
    }

    /// Fetches a file to its place below `dir`. `progress` is told how many of its bytes are there.
    pub fn fetch(
        &self,
        repo: &str,
        remote: &Remote,
        dir: &Path,
        progress: &mut dyn FnMut(u64),
    ) -> Result<PathBuf> {
        let place = dir.join(&remote.path);
        let folder = place.parent().unwrap_or(dir);
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let name = place.file_name().unwrap_or_default().to_string_lossy();
        let part = folder.join(format!("{name}.{}.part", &remote.sha256[..16]));
        let mut file = Partial::open(&part)?;
        let url = format!("{}/{repo}/resolve/main/{}", self.endpoint, remote.path);
        progress(file.len);
        let mut patience = self.patience();
        loop {
            let before = file.len;
            match self.continue_at(&url, repo, remote, &mut file, progress) {
                Ok(()) => break,
                Err(failure) => patience.again(file.len > before, failure)?,
            }
        }
        file.verify(remote, &part)?;
        fs::rename(&part, &place).with_context(|| place.display().to_string())?;
        Ok(place)
    }

    fn continue_at(
        &self,
        url: &str,
        repo: &str,
        remote: &Remote,
        file: &mut Partial,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Failure> {
        if file.len > remote.bytes {
            file.restart()?;
        }
        if file.len == remote.bytes {
            return Ok(());
        }
        let mut response = self.get(url, repo, file.len).map_err(Failure::Passing)?;
        match response.status().as_u16() {
            206 => {
                let range = response.headers().get("content-range").and_then(|v| v.to_str().ok());
                if !range.is_some_and(|r| r.starts_with(&format!("bytes {}-", file.len))) {
                    return Err(Failure::Final(anyhow!(
                        "{url}: asked for bytes from {}, got {range:?}",
                        file.len
                    )));
                }
            }
            // The server knows no ranges, or nothing was there yet.
            200 => file.restart()?,
            416 => {
                file.restart()?;
                return Err(Failure::Passing(anyhow!("{url}: the server has no byte {}", file.len)));
            }
            status => return Err(refused(status, url, repo)),
        }
        let mut body = response.body_mut().with_config().limit(u64::MAX).reader();
        let mut buffer = vec![0; 1 << 18];
        while file.len < remote.bytes {
            let n = match body.read(&mut buffer) {
                Ok(0) => return Err(Failure::Passing(anyhow!("the connection was closed early"))),
                Ok(n) => n.min((remote.bytes - file.len) as usize),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(Failure::Passing(e.into())),
            };
            file.append(&buffer[..n])?;
            progress(file.len);
        }
        Ok(())
    }

    fn get(&self, url: &str, repo: &str, from: u64) -> Result<ureq::http::Response<ureq::Body>> {
        let mut request = self.agent.get(url);
        if from > 0 {
            request = request.header("range", format!("bytes={from}-"));
        }
        request.call().map_err(|e| {
            anyhow!(
                "cannot reach {} ({e}). Without a connection, download the file elsewhere from {HUGGING_FACE}/{repo} and \
                 give its path instead of the name; `glimmer run` without a model needs no download",
                self.endpoint
            )
        })
    }

    fn patience(&self) -> Patience {
        Patience { tries: 0, pause: self.pause, first: self.pause }
    }
}

/// Tries again while attempts bring something, and `TRIES` times while they do not.
struct Patience {
    tries: u32,
    pause: Duration,
    first: Duration,
}

impl Patience {
    /// Waits before the next attempt, if there should be one.
    fn again(&mut self, progress: bool, failure: Failure) -> Result<()> {
        let error = match failure {
            Failure::Final(e) => return Err(e),
            Failure::Passing(e) => e,
        };
        if progress {
            (self.tries, self.pause) = (0, self.first);
        }
        self.tries += 1;
        if self.tries == TRIES {
            return Err(error.context(format!("gave up after {TRIES} attempts; what was fetched is kept")));
        }
        thread::sleep(self.pause);
        self.pause *= 2;
        Ok(())
    }
}

fn remote(entry: &Entry) -> Result<Remote> {
    let Entry { path, lfs } = entry;
    let Some(Lfs { oid, size }) = lfs else { bail!("{path}: the server gives no checksum for it") };
    let hex = oid.len() == 64 && oid.bytes().all(|b| b.is_ascii_hexdigit());
    if !hex || !names::safe(path) {
        bail!("{path}: the server's entry is no file with a SHA-256 sum");
    }
    Ok(Remote { path: path.clone(), bytes: *size, sha256: oid.to_lowercase() })
}

fn refused(status: u16, url: &str, repo: &str) -> Failure {
    let page = format!("{HUGGING_FACE}/{repo}");
    match status {
        401 | 403 => Failure::Final(anyhow!(
            "{url}: not allowed (status {status}): there is no such repository, or its owner wants an account; \
             download the file by hand from {page} and give its path instead of a name"
        )),
        404 => Failure::Final(anyhow!("{url}: not found (status 404); {page} shows what there is")),
        429 | 500.. => Failure::Passing(anyhow!("{url}: the server is busy (status {status})")),
        _ => Failure::Final(anyhow!("{url}: unexpected status {status}")),
    }
}

fn nothing(wanted: &Wanted, entries: &[Entry]) -> anyhow::Error {
    let mut there: Vec<String> = match wanted.choice {
        Choice::Quant(_) => entries.iter().filter_map(|e| names::quant_of(&e.path)).collect(),
        Choice::File(_) => entries.iter().map(|e| e.path.clone()).filter(|p| p.ends_with(".gguf")).collect(),
    };
    there.sort_unstable();
    there.dedup();
    match there.is_empty() {
        true => anyhow!("{wanted}: {} holds no GGUF files", wanted.repo),
        false => anyhow!("{wanted} does not exist; {} has {}", wanted.repo, there.join(", ")),
    }
}

/// A file that is not whole yet, locked, and the checksum of what is there.
struct Partial {
    file: File,
    len: u64,
    sum: Sha256,
}

impl Partial {
    fn open(path: &Path) -> Result<Partial> {
        let name = || path.display().to_string();
        let mut options = OpenOptions::new();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).open(path).with_context(name)?;
        if file.try_lock().is_err() {
            bail!("{}: another glimmer is fetching this file", path.display());
        }
        let (mut sum, mut len, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 20]);
        loop {
            match file.read(&mut buffer).with_context(name)? {
                0 => return Ok(Partial { file, len, sum }),
                n => {
                    sum.update(&buffer[..n]);
                    len += n as u64;
                }
            }
        }
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.file.write_all(bytes).map_err(|e| {
            Failure::Final(match e.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                    anyhow!("the disk is full; free some space and pull again: what was fetched is kept")
                }
                _ => e.into(),
            })
        })?;
        self.sum.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    fn restart(&mut self) -> Result<(), Failure> {
        let cleared = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        cleared.map_err(|e| Failure::Final(e.into()))?;
        (self.len, self.sum) = (0, Sha256::new());
        Ok(())
    }

    fn verify(self, remote: &Remote, path: &Path) -> Result<()> {
        self.file.sync_all().with_context(|| path.display().to_string())?;
        let sum: String = self.sum.finalize().iter().map(|b| format!("{b:02x}")).collect();
        if sum == remote.sha256 {
            return Ok(());
        }
        fs::remove_file(path).with_context(|| path.display().to_string())?;
        bail!(
            "{}: the SHA-256 sum is {sum}, expected {}; the damaged file was removed, pull again",
            remote.path,
            remote.sha256
        )
    }
}
