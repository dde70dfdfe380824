//! `/metrics`: the part of vLLM's metrics that routers and dashboards read, under its names and labels.

use crate::config::Config;
use crate::engine::Stats;
use std::fmt::Write;

/// The Prometheus text of `stats`; `started` is when the engine started, in seconds since the epoch.
pub(crate) fn render(config: &Config, stats: &Stats, started: f64) -> String {
    let mut page = Page { text: String::new(), model: &config.served_model_name };
    let totals = stats.totals;
    page.family(
        "process_start_time_seconds",
        "gauge",
        "Start time of the process since unix epoch in seconds.",
    );
    page.line("process_start_time_seconds", "", started);
    page.gauge(
        "num_requests_running",
        "Number of requests in model execution batches.",
        stats.running as f64,
    );
    page.gauge("num_requests_waiting", "Number of requests waiting to be processed.", stats.waiting as f64);
    page.gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", stats.cache_usage);
    page.counter("prefix_cache_queries", "Queried tokens.", totals.queried_tokens);
    page.counter("prefix_cache_hits", "Queried tokens that were cached.", totals.hit_tokens);
    page.counter("prompt_tokens", "Number of prefill tokens processed.", totals.prompt_tokens);
    page.counter("generation_tokens", "Number of generation tokens processed.", totals.generation_tokens);
    page.counter("num_preemptions", "Cumulative number of preemptions.", totals.preemptions);
    let cache = &config.cache;
    let labels = format!(
        "block_size=\"{}\",enable_prefix_caching=\"True\",engine=\"0\",hash_block_size=\"None\",num_gpu_blocks=\"{}\",\
         prefix_caching_hash_algo=\"sha256_cbor\",prefix_match_unit=\"None\",sliding_window=\"None\"",
        cache.block_size.tokens(),
        cache.num_blocks
    );
    page.family("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig");
    page.line("vllm:cache_config_info", &labels, 1.0);
    page.text
}

struct Page<'a> {
    text: String,
    model: &'a str,
}

impl Page<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        let name = format!("vllm:{name}");
        self.family(&name, "gauge", help);
        self.line(&name, &self.labels(), value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        let name = format!("vllm:{name}_total");
        self.family(&name, "counter", help);
        self.line(&name, &self.labels(), value as f64);
    }

    fn labels(&self) -> String {
        let model = self.model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("engine=\"0\",model_name=\"{model}\"")
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Values have a decimal point, as Python writes them.
    fn line(&mut self, name: &str, labels: &str, value: f64) {
        let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = writeln!(self.text, "{name}{labels} {value:?}");
    }
}
