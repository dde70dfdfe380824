//! What is changed in the source of a template before it is compiled.

/// Line ends as Jinja2 reads them, and `{% generation %}`, which transformers adds to find the text of the assistant
/// and which only opens a scope here.
pub(super) fn normalized(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut output = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some((before, tag)) = rest.split_once("{%") {
        output.push_str(before);
        output.push_str("{%");
        let start = tag.trim_start_matches(['-', '+']).trim_start();
        let renamed =
            [("endgeneration", "endwith"), ("generation", "with")].into_iter().find_map(|(from, to)| {
                let after = start.strip_prefix(from)?;
                after.trim_start().trim_start_matches(['-', '+']).starts_with("%}").then_some((after, to))
            });
        rest = match renamed {
            Some((after, name)) => {
                output.push_str(tag.get(..tag.len() - start.len()).unwrap_or_default());
                output.push_str(name);
                after
            }
            None => tag,
        };
    }
    output.push_str(rest);
    output
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn line_ends_and_generation_tags_are_replaced() {
        let source = "a\r\nb\r{%- generation -%}x{% endgeneration %}{%+ generation%}{% endgeneration +%}";
        assert_eq!(normalized(source), "a\nb\n{%- with -%}x{% endwith %}{%+ with%}{% endwith +%}");
        for same in
            ["{% if generation %}{% endif %}", "generation", "{%", "{% generation", "{{ generation }}"]
        {
            assert_eq!(normalized(same), same);
        }
    }
}
