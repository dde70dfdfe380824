//! The configuration file while the service runs.

use crate::config::{Config, ConfigError};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// A file that is looked at again and again.
#[derive(Debug)]
pub struct ConfigFile {
    path: PathBuf,
    seen: Option<(SystemTime, u64)>,
}

/// How often the file was read again, and what came of it.
#[derive(Debug, Default)]
pub struct Reloads {
    applied: AtomicU64,
    refused: AtomicU64,
}

impl ConfigFile {
    /// Reads the file for the first time.
    pub fn open(path: PathBuf) -> Result<(ConfigFile, Config), ConfigError> {
        let mut file = ConfigFile { path, seen: None };
        // Before the text: what is written in between is then read again.
        file.seen = file.stamp();
        let config = Config::read(&file.path)?;
        Ok((file, config))
    }

    /// Reads the file if it is not what was seen last, by modification time and size. A file that cannot be looked at
    /// counts as unchanged: it may just be replaced.
    pub fn changed(&mut self) -> Option<Result<Config, ConfigError>> {
        let stamp = self.stamp()?;
        (self.seen != Some(stamp)).then(|| self.read())
    }

    /// Reads the file.
    pub fn read(&mut self) -> Result<Config, ConfigError> {
        self.seen = self.stamp();
        Config::read(&self.path)
    }

    fn stamp(&self) -> Option<(SystemTime, u64)> {
        let metadata = std::fs::metadata(&self.path).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    }
}

impl Reloads {
    /// Configurations that were taken over.
    pub fn applied(&self) -> u64 {
        self.applied.load(Ordering::Relaxed)
    }

    /// Configurations that were not valid.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub(crate) fn note(&self, applied: bool) {
        let counter = if applied { &self.applied } else { &self.refused };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Config {
    /// Fields that differ and are only read at start, by name.
    pub fn needs_restart(&self, new: &Config) -> Vec<&'static str> {
        let Config { listen, index, models, producers, replicas: _ } = self;
        [
            ("listen", *listen != new.listen),
            ("index", *index != new.index),
            ("models", *models != new.models),
            ("producers", *producers != new.producers),
        ]
        .into_iter()
        .filter_map(|(name, differs)| differs.then_some(name))
        .collect()
    }
}
