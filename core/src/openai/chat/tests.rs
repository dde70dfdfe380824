use super::super::{ContentFormat, Endpoint, Prompt, parse};
use super::*;
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn chat(fields: &str) -> Result<Chat, BodyError> {
    let body = format!(r#"{{"model": "m", {fields}}}"#);
    match parse(Endpoint::ChatCompletions, body.as_bytes(), true)?.prompt {
        Prompt::Chat(chat) => Ok(*chat),
        _ => panic!("a chat"),
    }
}

/// The only message, in `format`.
fn message(message: &str, format: ContentFormat) -> Result<Value, BodyError> {
    let chat = chat(&format!(r#""messages": [{message}]"#))?;
    Ok(conversation(&chat.messages, format).remove(0))
}

fn json(text: &str) -> Value {
    text.parse().unwrap()
}

// Expected values: read from vLLM 0.32.0, vllm/renderers/chat_utils.py.
#[test]
fn content_takes_the_form_the_template_reads() {
    for (raw, text, parts) in [
        (r#""a""#, r#""a""#, r#"[{"type": "text", "text": "a"}]"#),
        ("null", r#""""#, "[]"),
        (
            r#"["a", {"type": "text", "text": "b"}]"#,
            r#""a\nb""#,
            r#"[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]"#,
        ),
        (r#"[{"type": "refusal", "refusal": "r"}]"#, r#""r""#, r#"[{"type": "text", "text": "r"}]"#),
        (r#"[{"type": "text", "text": null}]"#, r#""""#, "[]"),
    ] {
        let raw = format!(r#"{{"role": "user", "content": {raw}}}"#);
        let expect = |content: &str| Ok(json(&format!(r#"{{"role": "user", "content": {content}}}"#)));
        assert_eq!(message(&raw, ContentFormat::Text), expect(text), "{raw}");
        assert_eq!(message(&raw, ContentFormat::Parts), expect(parts), "{raw}");
    }
    let tool = r#"{"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "a"}, "b"]}"#;
    let expected = json(r#"{"role": "tool", "content": "a\nb", "tool_call_id": "1"}"#);
    assert_eq!(message(tool, ContentFormat::Parts), Ok(expected));
}

#[test]
fn what_is_not_text_is_said_to_be_so() {
    for part in [
        r#"{"type": "image_url", "image_url": {"url": "http://x"}}"#,
        r#"{"type": "input_audio", "input_audio": {}}"#,
        r#"{"type": "video_url"}"#,
        r#"{"image_url": "x"}"#,
        r#"{"type": "text", "text": "a", "uuid": "1"}"#,
    ] {
        let raw = format!(r#"{{"role": "user", "content": ["a", {part}]}}"#);
        assert_eq!(message(&raw, ContentFormat::Text), Err(BodyError::NotText), "{part}");
    }
    for bad in [r#"{"content": "a"}"#, r#"{"role": "user", "content": 5}"#, "5", r#"{"role": 1}"#] {
        assert_eq!(message(bad, ContentFormat::Text), Err(BodyError::BadMessage), "{bad}");
    }
    assert_eq!(chat(r#""messages": []"#), Err(BodyError::EmptyMessages));
    assert_eq!(chat(r#""messages": {}"#), Err(BodyError::NoMessages));
}

#[test]
fn only_known_fields_reach_the_template() {
    let raw = r#"{"extra": 1, "content": "x", "reasoning_content": "r", "name": "n", "role": "assistant", "tool_calls": []}"#;
    let expected = r#"{"thinking": "r", "role": "assistant", "content": "x", "reasoning": "r",
                       "reasoning_content": "r", "name": "n"}"#;
    assert_eq!(message(raw, ContentFormat::Text), Ok(json(expected)));
    let raw = r#"{"role": "user", "content": "x", "name": null, "reasoning": "r", "tool_calls": [1]}"#;
    assert_eq!(message(raw, ContentFormat::Text), Ok(json(r#"{"role": "user", "content": "x"}"#)));
}

#[test]
fn arguments_of_tool_calls_are_read() {
    for (arguments, expected) in [
        (r#""{\"a\": [1, 2.0]}""#, r#"{"a": [1, 2.0]}"#),
        (r#"{"a": 1}"#, r#"{"a": 1}"#),
        (r#""""#, "{}"),
        ("null", "{}"),
        (r#""[1]""#, "{}"),
        (r#""{not json""#, "{}"),
    ] {
        let raw = format!(
            r#"{{"role": "assistant", "tool_calls": [{{"id": "1", "type": "function", "function": {{"name": "f", "arguments": {arguments}}}}}]}}"#
        );
        let expected = format!(
            r#"{{"role": "assistant", "content": "", "tool_calls": [{{"id": "1", "type": "function", "function": {{"name": "f", "arguments": {expected}}}}}]}}"#
        );
        assert_eq!(message(&raw, ContentFormat::Text), Ok(json(&expected)), "{arguments}");
    }
    for bad in ["[1]", r#"[{"function": "f"}]"#, r#"[{"type": "custom", "function": {}}]"#, "5"] {
        let raw = format!(r#"{{"role": "assistant", "tool_calls": {bad}}}"#);
        assert_eq!(message(&raw, ContentFormat::Text), Err(BodyError::BadMessage), "{bad}");
    }
}

#[test]
fn tools_are_written_as_the_engine_writes_them() {
    let raw = r#""messages": [{"role": "user", "content": "x"}],
        "tools": [{"function": {"parameters": {"b": 1, "a": 2}, "name": "f", "extra": 1}, "type": "function"},
                  {"function": {"name": "g", "strict": true, "description": "d"}, "defer_loading": true}]"#;
    let expected = r#"[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"b": 1, "a": 2}}},
        {"type": "function", "function": {"name": "g", "description": "d", "parameters": null, "strict": true, "defer_loading": true}, "defer_loading": true}]"#;
    assert_eq!(chat(raw).unwrap().tools, Some(json(expected)));
    let bad = r#""messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}]"#;
    assert_eq!(chat(bad), Err(BodyError::BadField("tools")));
}

#[test]
fn a_line_that_changes_with_every_request_is_removed() {
    let raw = r#"{"role": "system", "content": [{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "x-anthropic-billing-header: 2\nyou"}]}"#;
    assert_eq!(message(raw, ContentFormat::Text), Ok(json(r#"{"role": "system", "content": "you"}"#)));
}

#[test]
fn the_defaults_are_the_engines() {
    let chat = chat(
        r#""messages": [{"role": "user", "content": "x"}], "reasoning_effort": "low", "chat_template_kwargs": {"a": 1}"#,
    );
    let chat = chat.unwrap();
    assert!(chat.add_generation_prompt && !chat.continue_final_message);
    assert_eq!(chat.reasoning_effort.as_deref(), Some("low"));
    assert_eq!(chat.chat_template_kwargs, [("a", json("1"))].into_iter().collect());
}
