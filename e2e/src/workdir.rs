//! A directory for configuration and logs of one run.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

/// Removed on drop; kept, and named on stderr together with the ends of its logs, when the thread panics.
#[derive(Debug)]
pub struct Workdir(PathBuf);

impl Workdir {
    pub fn new() -> Result<Workdir> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("inference-cache-{unique}"));
        std::fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Workdir(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes `text` to the file `name` and returns its path.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// The last lines of every log.
    pub fn logs(&self) -> String {
        let mut logs: Vec<PathBuf> = std::fs::read_dir(&self.0)
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
            .collect();
        logs.sort();
        logs.iter().map(|path| format!("--- {}\n{}\n", path.display(), tail(path))).collect()
    }
}

impl Drop for Workdir {
    #[expect(clippy::print_stderr, reason = "shown with the failed test")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        } else {
            // What cannot be removed lies in the system's temporary directory.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// The last 40 lines of a file.
pub(crate) fn tail(path: &Path) -> String {
    let text =
        std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
