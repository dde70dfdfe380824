//! Settings of the request path.

use serde::Deserialize;

/// How a gateway decides. Unknown fields are refused.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Settings {
    /// Destinations named per request, best first: what Envoy falls back to if the first is unknown or refuses.
    /// 1 to 16.
    pub fallbacks: usize,
    /// Tokens of a routed prompt, beyond what is matched, that count as present on its replica at once. 0 switches
    /// speculation off. The price is tokenizing them although no replica holds them.
    pub max_speculative_tokens: u32,
    /// Milliseconds that a speculative block counts after its request's first token, until the engine's event must
    /// have come.
    pub speculative_ttl_ms: u32,
    /// Storage entries (12 to 60 bytes each) that the index replica may hold.
    pub max_index_entries: usize,
    /// Blocks of a client-computed chain (header mode) that are looked at.
    pub max_chain_blocks: usize,
}

/// A setting that is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("gateway.{field}: {problem}")]
pub struct SettingsError {
    /// The field as written in the configuration.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: &'static str,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            fallbacks: 3,
            max_speculative_tokens: 4096,
            speculative_ttl_ms: 2000,
            max_index_entries: 4_000_000,
            max_chain_blocks: 8192,
        }
    }
}

impl Settings {
    /// Checks ranges.
    pub fn validate(&self) -> Result<(), SettingsError> {
        let error = |field, problem| Err(SettingsError { field, problem });
        if !(1..=16).contains(&self.fallbacks) {
            return error("fallbacks", "must be 1 to 16");
        }
        if self.max_speculative_tokens > 1 << 20 {
            return error("maxSpeculativeTokens", "must be at most 1048576");
        }
        if !(1..=60_000).contains(&self.speculative_ttl_ms) {
            return error("speculativeTtlMs", "must be 1 to 60000");
        }
        if self.max_index_entries == 0 {
            return error("maxIndexEntries", "must be at least 1");
        }
        if !(1..=65_536).contains(&self.max_chain_blocks) {
            return error("maxChainBlocks", "must be 1 to 65536");
        }
        Ok(())
    }
}
