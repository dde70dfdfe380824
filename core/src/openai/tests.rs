use super::*;
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn completion(body: &str) -> Result<Prompt, BodyError> {
    parse(Endpoint::Completions, body.as_bytes(), true).map(|request| request.prompt)
}

#[test]
fn completion_prompts_of_every_form() {
    for (prompt, expected) in [
        (r#""a\nb""#, Prompt::Text("a\nb".into())),
        (r#"["a", "b"]"#, Prompt::Text("a".into())),
        ("[1, 2, 4294967295]", Prompt::Tokens(vec![1, 2, u32::MAX])),
        ("[[7], [8]]", Prompt::Tokens(vec![7])),
    ] {
        let body = format!(r#"{{"model": "m", "prompt": {prompt}, "max_tokens": 5}}"#);
        assert_eq!(completion(&body), Ok(expected));
    }
    for (prompt, error) in [
        ("null", BodyError::NoPrompt),
        ("[]", BodyError::NoPrompt),
        ("[[]]", BodyError::NoPrompt),
        ("5", BodyError::BadPrompt),
        ("[-1]", BodyError::BadPrompt),
        ("[4294967296]", BodyError::BadPrompt),
        ("[1, \"a\"]", BodyError::BadPrompt),
        ("[1.5]", BodyError::BadPrompt),
        ("{}", BodyError::BadPrompt),
    ] {
        assert_eq!(completion(&format!(r#"{{"model": "m", "prompt": {prompt}}}"#)), Err(error), "{prompt}");
    }
}

#[test]
fn fields_beside_the_prompt() {
    let body = r#"{"user": {"x": [1, "}"]}, "prompt": "p", "model": "a", "cache_salt": "s",
                   "add_special_tokens": false, "model": "b", "truncate_prompt_tokens": -1}"#;
    let request = parse(Endpoint::Completions, body.as_bytes(), true).unwrap();
    assert_eq!((request.model.as_str(), request.cache_salt.as_deref()), ("b", Some("s")));
    assert_eq!(request.add_special_tokens, Some(false));
    for (body, error) in [
        ("", BodyError::NotJson),
        ("[]", BodyError::NotObject),
        ("{} x", BodyError::NotJson),
        (r#"{"prompt": "p"}"#, BodyError::NoModel),
        (r#"{"prompt": "p", "model": null}"#, BodyError::NoModel),
        (r#"{"prompt": "p", "model": "\ud800"}"#, BodyError::NotUnicode),
        (r#"{"model": "m", "prompt_embeds": "x"}"#, BodyError::NotText),
        (r#"{"model": "m", "prompt": "p", "cache_salt": 1}"#, BodyError::BadField("cache_salt")),
        (
            r#"{"model": "m", "prompt": "p", "add_special_tokens": 1}"#,
            BodyError::BadField("add_special_tokens"),
        ),
        (
            r#"{"model": "m", "prompt": "p", "truncate_prompt_tokens": 9}"#,
            BodyError::Unsupported("truncate_prompt_tokens"),
        ),
    ] {
        assert_eq!(completion(body), Err(error), "{body}");
    }
    assert!(completion("\u{feff}{\"model\": \"m\", \"prompt\": \"p\"}").is_ok());
    assert_eq!(parse(Endpoint::Completions, b"{\"model\": \"\xff\"}", true), Err(BodyError::NotJson));
}

#[test]
fn a_body_cut_anywhere_gives_a_prefix_or_a_reason() {
    let body = r#"{"model": "m", "stream": true, "messages": [{"role": "system", "content": "é\n😀\ud83d\ude00"},
        {"role": "user", "content": [{"type": "text", "text": "question"}]}], "tools": [], "temperature": 0.5}"#;
    let whole = parse(Endpoint::ChatCompletions, body.as_bytes(), true).unwrap();
    let Prompt::Chat(whole) = whole.prompt else { panic!("a chat") };
    let mut seen = 0;
    for end in 0..body.len() {
        let Ok(request) = parse(Endpoint::ChatCompletions, &body.as_bytes()[..end], false) else { continue };
        let Prompt::Chat(chat) = request.prompt else { panic!("a chat") };
        for (cut, message) in chat.messages.iter().zip(&whole.messages) {
            let content = |message: &Value| {
                let text = conversation(std::slice::from_ref(message), ContentFormat::Text);
                text[0].as_object().unwrap().get("content").unwrap().as_str().unwrap().to_owned()
            };
            assert!(content(message).starts_with(&content(cut)), "{end}");
            assert_eq!(message.as_object().unwrap().get("role"), cut.as_object().unwrap().get("role"));
        }
        seen += 1;
    }
    assert!(seen > 100);
    let tokens = br#"{"model": "m", "prompt": [1, 22, 33"#;
    let request = parse(Endpoint::Completions, tokens, false).unwrap();
    assert_eq!(request.prompt, Prompt::Tokens(vec![1, 22]));
    assert_eq!(
        parse(Endpoint::Completions, br#"{"prompt": "x", "model": "m"#, false),
        Err(BodyError::NoModel)
    );
}
