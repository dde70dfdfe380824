use super::*;
use crate::openai::{Endpoint, Prompt};
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn compile(source: &str) -> ChatTemplate {
    ChatTemplate::compile(source, TemplateSettings::default()).unwrap()
}

/// Renders `source` with the fields of a JSON object.
fn with(source: &str, variables: &str) -> Result<String, TemplateError> {
    let variables: Value = variables.parse().unwrap();
    compile(source).render_variables(variables.as_object().unwrap(), 0)
}

/// Renders `source` for a request.
fn request(source: &str, fields: &str) -> Result<String, TemplateError> {
    let body = format!(r#"{{"model": "m", {fields}}}"#);
    let Prompt::Chat(chat) = openai::parse(Endpoint::ChatCompletions, body.as_bytes(), true).unwrap().prompt
    else {
        panic!("a chat")
    };
    let settings = TemplateSettings {
        special_tokens: vec![("bos_token".into(), "<s>".into())],
        utc_offset_seconds: 3600,
        ..TemplateSettings::default()
    };
    ChatTemplate::compile(source, settings).unwrap().render(&chat, 1_735_689_599_000)
}

const TURN: &str = r#""messages": [{"role": "user", "content": "x"}]"#;

// Expected values of the tests below: transformers 5.24.0's environment, Jinja2 3.1.6, Python 3.11.
#[test]
fn tojson_writes_as_python() {
    let v = r#"{"v": {"b": [1, 2.0, 1e-07, 12345678901234567890123456789012345678901234567890], "a": "<é\u0001\"/>", "e": {}, "l": [], "n": null, "t": true}}"#;
    assert_eq!(
        with("{{ v | tojson }}", v).unwrap(),
        r#"{"b": [1, 2.0, 1e-07, 12345678901234567890123456789012345678901234567890], "a": "<é\u0001\"/>", "e": {}, "l": [], "n": null, "t": true}"#
    );
    assert_eq!(
        with(
            "{{ v | tojson(indent=2, sort_keys=true, ensure_ascii=True) }}",
            r#"{"v": {"b": [1, {}], "a": "é😀"}}"#
        )
        .unwrap(),
        "{\n  \"a\": \"\\u00e9\\ud83d\\ude00\",\n  \"b\": [\n    1,\n    {}\n  ]\n}"
    );
    assert_eq!(
        with("{{ v | tojson(separators=(',', ':')) }}", r#"{"v": [1, {"a": 2}]}"#).unwrap(),
        r#"[1,{"a":2}]"#
    );
    assert!(with("{{ missing | tojson }}", "{}").is_err());
}

#[test]
fn values_print_as_python() {
    let v = r#"{"v": ["it's", null, true, 1.0, {"a": "b"}], "n": null, "t": false, "f": 1e16, "i": 99999999999999999999}"#;
    assert_eq!(with("{{ v }}", v).unwrap(), r#"["it's", None, True, 1.0, {'a': 'b'}]"#);
    assert_eq!(
        with("{{ n }} {{ t }} {{ f }} {{ i }} {{ missing }}.", v).unwrap(),
        "None False 1e+16 99999999999999999999 ."
    );
    assert_eq!(with("{{ v | string | length }} {{ n | trim }}", v).unwrap(), "37 None");
    assert_eq!(
        with("[{{ s.strip() }}{{ s | trim }}{{ s.rstrip() }}]", r#"{"s": "\u001c a\u001f"}"#).unwrap(),
        "[aa\u{1c} a]"
    );
}

#[test]
fn blocks_are_trimmed_and_generation_is_a_scope() {
    assert_eq!(with("a\r\n  {% if true %}\r\nb\r\n  {% endif %}\r\nc\r\n", "{}").unwrap(), "a\nb\nc");
    let source = "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}";
    assert_eq!(with(source, "{}").unwrap(), "21");
    assert_eq!(
        with("{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "{}")
            .unwrap(),
        "13"
    );
}

#[test]
fn a_request_gets_the_engines_variables() {
    let source = "{{ bos_token }}|{{ tools }}|{{ documents }}|{{ add_generation_prompt }}|{{ a }}|{{ enable_thinking }}|{{ strftime_now('%d %b %Y') }}";
    assert_eq!(request(source, TURN).unwrap(), "<s>|None|None|True|||01 Jan 2025");
    let fields = format!(
        r#"{TURN}, "reasoning_effort": "none", "chat_template_kwargs": {{"a": 1, "bos_token": "B", "add_generation_prompt": false}}"#
    );
    assert_eq!(request(source, &fields).unwrap(), "B|None|None|True|1|False|01 Jan 2025");
    let reserved = format!(r#"{TURN}, "chat_template_kwargs": {{"messages": []}}"#);
    assert_eq!(request(source, &reserved), Err(TemplateError::Reserved));
    assert_eq!(request(source, &format!(r#"{TURN}, "chat_template": "x""#)), Err(TemplateError::OwnTemplate));
}

#[test]
fn the_last_message_is_continued() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}";
    let trimmed = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}";
    let fields = r#""messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "so "}],
        "continue_final_message": true, "add_generation_prompt": false"#;
    assert_eq!(request(template, fields).unwrap(), "<user>q</><assistant>so ");
    assert_eq!(request(trimmed, fields).unwrap(), "<user>q</><assistant>so");
    let both = fields.replace("false", "true");
    assert_eq!(request(template, &both), Err(TemplateError::NotContinuable));
    assert_eq!(request("{{ messages | length }}", fields), Err(TemplateError::NotContinuable));
}

#[test]
fn developer_messages_become_the_system_message() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let fields = r#""messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "q"}, {"role": "developer", "content": "b"}]"#;
    assert_eq!(request(template, fields).unwrap(), "<system>a\n\nb<user>q");
    let knows = format!("{template}{{# 'developer' #}}");
    assert_eq!(request(&knows, fields).unwrap(), "<system>a<user>q<developer>b");
}

#[test]
fn failures_are_told_apart() {
    assert_eq!(with("{{ raise_exception('no: ' ~ s) }}", r#"{"s": "secret"}"#), Err(TemplateError::Refused));
    assert!(matches!(
        ChatTemplate::compile("a\n{% if %}", TemplateSettings::default()),
        Err(TemplateError::Compile { line: 2, .. })
    ));
    assert!(matches!(with("{{ missing.field }}", "{}"), Err(TemplateError::Failed { line: 1, .. })));
    let endless = "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}";
    assert_eq!(with(endless, "{}"), Err(TemplateError::TooManySteps));
    let text = format!(r#"{{"s": "{}"}}"#, "x".repeat(100_000));
    assert_eq!(with("{% for a in range(10000) %}{{ s }}{% endfor %}", &text), Err(TemplateError::TooLarge));
}

#[test]
fn deep_recursion_ends_in_an_error() {
    let macros = "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}";
    assert!(with(macros, "{}").is_err());
    let nested = "{% set ns = namespace(v=[]) %}{% for i in range(1000) %}{% set ns.v = [ns.v] %}{% endfor %}{{ ns.v | tojson }}";
    assert!(with(nested, "{}").is_err());
}
