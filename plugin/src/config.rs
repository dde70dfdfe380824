//! The plugin configuration: JSON from the proxy, checked before anything runs.
//!
//! Unknown fields, values out of range and names that cannot be header names are refused with the field named; the
//! proxy then refuses the configuration as a whole and keeps the one it has.

use inference_cache_core::gateway::Settings;
use serde::Deserialize;
use xxhash_rust::xxh3::xxh3_64;

/// A checked configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct Config {
    /// Where the replication stream comes from.
    pub host_shim: HostShim,
    /// Where the tenant of a request is read.
    pub tenant: TenantSource,
    /// Whether bodies can be held for.
    pub mode: ModeSetting,
    /// Which requests are LLM requests.
    pub paths: Paths,
    /// Bytes of a body that are looked at; below the proxy's buffer limit.
    pub max_body_bytes: usize,
    /// Whether responses say how they were routed.
    pub debug_headers: bool,
    /// Names of the headers that are read and written, in lower case.
    pub headers: HeaderNames,
    /// What core decides by.
    pub gateway: Settings,
    /// Identifies the source of replication and what is built from it: configurations with equal keys share an index.
    pub source_key: u64,
    /// Identifies the whole text.
    pub digest: u64,
}

/// The control service as the proxy's cluster knows it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostShim {
    /// The proxy's cluster.
    pub cluster: String,
    /// Sent as `:authority`; the cluster's name if empty, which h2 servers refuse if it is not a host name.
    #[serde(default)]
    pub authority: String,
}

/// Where the tenant comes from. A header must be set by a filter that clients cannot speak past.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum TenantSource {
    /// All requests are this tenant's.
    Fixed(String),
    /// The value of a header.
    Header(String),
    /// The value of a property, such as `["filter_state", "tenant"]`.
    Property(Vec<String>),
}

/// Whether to hold headers until the body is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ModeSetting {
    /// Find out.
    #[default]
    Auto,
    /// Always: the proxy is known to have `allow_on_headers_stop_iteration`.
    Body,
    /// Never.
    Header,
}

/// Paths of LLM requests, compared without the query.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Paths {
    /// Chat completions.
    pub chat_completions: Vec<String>,
    /// Completions.
    pub completions: Vec<String>,
}

impl Default for Paths {
    fn default() -> Paths {
        Paths {
            chat_completions: vec!["/v1/chat/completions".to_owned()],
            completions: vec!["/v1/completions".to_owned()],
        }
    }
}

/// Header names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderNames {
    /// Written: `ip:port,ip:port`, best first. One that a client sends is removed.
    pub destination: String,
    /// Read in header mode: identifies the conversation.
    pub conversation: String,
    /// Read in header mode: the model.
    pub model: String,
    /// Read in header mode: block hashes of the prompt.
    pub chain: String,
}

/// Why a configuration was refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON, an unknown field, a missing field, a value of another type.
    #[error("{field}: {problem}")]
    Shape {
        /// Path of the field, `.` for the whole.
        field: String,
        /// What the parser says.
        problem: String,
    },
    /// A value that cannot be.
    #[error("{field}: {problem}")]
    Value {
        /// Path of the field.
        field: &'static str,
        /// What is wrong.
        problem: &'static str,
    },
    /// In the settings of core.
    #[error(transparent)]
    Settings(#[from] inference_cache_core::gateway::SettingsError),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Text {
    host_shim: HostShim,
    #[serde(default = "default_tenant")]
    tenant: TenantSource,
    #[serde(default)]
    mode: ModeSetting,
    #[serde(default)]
    paths: Paths,
    #[serde(default = "default_max_body_bytes")]
    max_body_bytes: usize,
    #[serde(default)]
    debug_headers: bool,
    #[serde(default = "default_destination")]
    destination_header: String,
    #[serde(default = "default_conversation")]
    conversation_header: String,
    #[serde(default = "default_model")]
    model_header: String,
    #[serde(default = "default_chain")]
    chain_header: String,
    #[serde(default)]
    gateway: Settings,
}

impl Config {
    /// Parses and checks the text of a plugin configuration.
    pub fn parse(text: &[u8]) -> Result<Config, ConfigError> {
        let mut reader = serde_json::Deserializer::from_slice(text);
        let shape = |field: String, problem: String| ConfigError::Shape { field, problem };
        let config: Text = serde_path_to_error::deserialize(&mut reader)
            .map_err(|error| shape(error.path().to_string(), error.inner().to_string()))?;
        reader.end().map_err(|error| shape(".".to_owned(), error.to_string()))?;
        config.check(xxh3_64(text))
    }

    /// Whether a request header that a client sent must not go on: the destination, and names of ours that are no
    /// input.
    pub fn strips(&self, name: &[u8]) -> bool {
        if name == self.headers.destination.as_bytes() {
            return true;
        }
        name.starts_with(OWN_PREFIX) && !self.reads(name)
    }

    fn reads(&self, name: &[u8]) -> bool {
        let headers = &self.headers;
        let inputs = [&headers.conversation, &headers.model, &headers.chain];
        inputs.iter().any(|input| input.as_bytes() == name)
            || matches!(&self.tenant, TenantSource::Header(header) if header.as_bytes() == name)
    }
}

/// Names of this system's headers start so.
const OWN_PREFIX: &[u8] = b"x-inference-cache-";

impl Text {
    fn check(self, digest: u64) -> Result<Config, ConfigError> {
        non_empty("hostShim.cluster", &self.host_shim.cluster)?;
        printable("hostShim.authority", &self.host_shim.authority)?;
        let tenant = match self.tenant {
            TenantSource::Fixed(tenant) => {
                non_empty("tenant.fixed", &tenant)?;
                TenantSource::Fixed(tenant)
            }
            TenantSource::Header(name) => TenantSource::Header(header_name("tenant.header", name)?),
            TenantSource::Property(path) => {
                check(
                    !path.is_empty() && path.iter().all(|part| !part.is_empty() && !part.contains('\0')),
                    "tenant.property",
                    "must be a list of non-empty names without NUL",
                )?;
                TenantSource::Property(path)
            }
        };
        for (field, paths) in [
            ("paths.chatCompletions", &self.paths.chat_completions),
            ("paths.completions", &self.paths.completions),
        ] {
            let good = |path: &String| path.starts_with('/') && !path.contains('?');
            check(paths.iter().all(good), field, "paths start with / and have no query")?;
        }
        let bytes = 1..=64 << 20;
        check(bytes.contains(&self.max_body_bytes), "maxBodyBytes", "must be 1 to 67108864")?;
        let headers = HeaderNames {
            destination: header_name("destinationHeader", self.destination_header)?,
            conversation: header_name("conversationHeader", self.conversation_header)?,
            model: header_name("modelHeader", self.model_header)?,
            chain: header_name("chainHeader", self.chain_header)?,
        };
        let inputs = [&headers.conversation, &headers.model, &headers.chain];
        let tenant_is_destination =
            matches!(&tenant, TenantSource::Header(name) if *name == headers.destination);
        check(
            !tenant_is_destination && !inputs.contains(&&headers.destination),
            "destinationHeader",
            "must not be a header that is read",
        )?;
        self.gateway.validate()?;
        let source_key = source_key(&self.host_shim, &self.gateway);
        Ok(Config {
            host_shim: self.host_shim,
            tenant,
            mode: self.mode,
            paths: self.paths,
            max_body_bytes: self.max_body_bytes,
            debug_headers: self.debug_headers,
            headers,
            gateway: self.gateway,
            source_key,
            digest,
        })
    }
}

fn source_key(host_shim: &HostShim, gateway: &Settings) -> u64 {
    xxh3_64(format!("{host_shim:?}{gateway:?}").as_bytes())
}

fn check(good: bool, field: &'static str, problem: &'static str) -> Result<(), ConfigError> {
    if good { Ok(()) } else { Err(ConfigError::Value { field, problem }) }
}

fn non_empty(field: &'static str, value: &str) -> Result<(), ConfigError> {
    check(!value.is_empty(), field, "must not be empty")?;
    printable(field, value)
}

fn printable(field: &'static str, value: &str) -> Result<(), ConfigError> {
    check(value.bytes().all(|byte| byte.is_ascii_graphic()), field, "must be printable ASCII without spaces")
}

/// Proxies keep header names in lower case.
fn header_name(field: &'static str, name: String) -> Result<String, ConfigError> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.!#$%&'*+^`|~".contains(&byte);
    check(!name.is_empty() && name.bytes().all(token), field, "must be a header name")?;
    Ok(name.to_ascii_lowercase())
}

fn default_tenant() -> TenantSource {
    TenantSource::Fixed("default".to_owned())
}

/// Nine tenths of a proxy's default buffer limit of 1 MiB, above which it answers 413 by itself.
fn default_max_body_bytes() -> usize {
    921_600
}

fn default_destination() -> String {
    "x-gateway-destination-endpoint".to_owned()
}

fn default_conversation() -> String {
    "x-conversation-id".to_owned()
}

fn default_model() -> String {
    "x-inference-cache-model".to_owned()
}

fn default_chain() -> String {
    "x-inference-cache-chain".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Config::parse(text.as_bytes()).expect_err(text).to_string()
    }

    #[test]
    fn little_is_needed() {
        let config = Config::parse(br#"{"hostShim": {"cluster": "host-shim"}}"#).expect("valid");
        assert_eq!(config.mode, ModeSetting::Auto);
        assert_eq!(config.tenant, TenantSource::Fixed("default".to_owned()));
        assert_eq!(config.headers.destination, "x-gateway-destination-endpoint");
        assert!(!config.debug_headers);
    }

    #[test]
    fn refusals_name_the_field() {
        assert!(refused("").contains("EOF"));
        assert!(refused("{}").contains("hostShim"));
        assert!(refused(r#"{"hostShim": {"cluster": ""}}"#).starts_with("hostShim.cluster: "));
        let with = |rest: &str| refused(&format!(r#"{{"hostShim": {{"cluster": "c"}}, {rest}}}"#));
        assert!(with(r#""colour": 1"#).contains("colour"));
        assert!(with(r#""maxBodyBytes": "1 MB""#).starts_with("maxBodyBytes: "));
        assert!(with(r#""maxBodyBytes": 0"#).starts_with("maxBodyBytes: "));
        assert!(with(r#""mode": "both""#).starts_with("mode: "));
        assert!(with(r#""tenant": {"header": "a b"}"#).starts_with("tenant.header: "));
        assert!(with(r#""tenant": {"property": []}"#).starts_with("tenant.property: "));
        assert!(with(r#""tenant": {"cookie": "x"}"#).contains("tenant"));
        assert!(with(r#""paths": {"completions": ["v1"]}"#).starts_with("paths.completions: "));
        assert!(with(r#""paths": {"completion": ["/v1"]}"#).starts_with("paths.completion: "));
        assert!(with(r#""gateway": {"fallbacks": 0}"#).starts_with("gateway.fallbacks: "));
        assert!(with(r#""gateway": {"fallbacks": -1}"#).starts_with("gateway.fallbacks: "));
        assert!(with(r#""destinationHeader": "x-conversation-id""#).starts_with("destinationHeader: "));
        assert!(refused(r#"{"hostShim": {"cluster": "c"}} x"#).contains("trailing"));
    }

    #[test]
    fn header_names_are_lowered_and_ours_are_stripped() {
        let config = Config::parse(
            br#"{"hostShim": {"cluster": "c"}, "destinationHeader": "X-Dest", "tenant": {"header": "X-Inference-Cache-Tenant"}}"#,
        )
        .expect("valid");
        assert!(config.strips(b"x-dest"));
        assert!(config.strips(b"x-inference-cache-replica"));
        assert!(!config.strips(b"x-inference-cache-chain"));
        assert!(!config.strips(b"x-inference-cache-tenant"));
        assert!(!config.strips(b"x-gateway-destination-endpoint"));
    }

    #[test]
    fn the_source_key_is_that_of_source_and_settings() {
        let key = |text: &str| Config::parse(text.as_bytes()).expect("valid").source_key;
        let base = key(r#"{"hostShim": {"cluster": "c"}}"#);
        assert_eq!(base, key(r#"{"hostShim": {"cluster": "c"}, "debugHeaders": true}"#));
        assert_ne!(base, key(r#"{"hostShim": {"cluster": "d"}}"#));
        assert_ne!(base, key(r#"{"hostShim": {"cluster": "c"}, "gateway": {"fallbacks": 1}}"#));
    }
}
