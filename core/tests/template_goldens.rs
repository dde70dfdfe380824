//! Templates against renders of transformers 5.24.0 (`tests-data/templates/generate.py`).
//!
//! `TEMPLATE_GOLDENS=FOLDER:FILE` checks another folder of templates against its own goldens and reports differences.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use inference_cache_core::openai::{Chat, Object, Value};
use inference_cache_core::template::{ChatTemplate, TemplateSettings};
use sha2::{Digest as _, Sha256};
use std::fs;
use std::path::{Path, PathBuf};

/// The clock of the generator.
const NOW_UNIX_MS: u64 = 1_735_735_296_000;

/// Cases that differ, and why that is accepted.
const ACCEPTED: &[(&str, &str, &str)] = &[];

#[test]
fn renders_equal_those_of_transformers() {
    let (folder, file) = match std::env::var("TEMPLATE_GOLDENS") {
        Ok(paths) => paths.split_once(':').map(|(a, b)| (PathBuf::from(a), PathBuf::from(b))).unwrap(),
        Err(_) => {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests-data/templates");
            (folder.clone(), folder.join("goldens.json"))
        }
    };
    let goldens: Value = fs::read_to_string(file).unwrap().parse().unwrap();
    let mut different = Vec::new();
    for (name, golden) in object(field(&goldens, "templates")).iter() {
        let source = fs::read_to_string(folder.join(&**name)).unwrap();
        let template = match ChatTemplate::compile(&source, TemplateSettings::default()) {
            Ok(template) => template,
            Err(error) => {
                different.push(format!("{name}: {error}"));
                continue;
            }
        };
        let before = different.len();
        let cases = list(field(&goldens, "cases"));
        for (case, digest) in cases.iter().zip(list(field(golden, "digests"))) {
            let (title, variables) = variables(&goldens, list(case));
            let ours = template.render_variables(&variables, NOW_UNIX_MS);
            let rendered = ours.as_ref().map_or_else(|_| "error".to_owned(), |text| sha256(text));
            let accepted = ACCEPTED.iter().any(|(of, case, _)| **of == **name && *case == title);
            if rendered != digest.as_str().unwrap() && !accepted {
                different.push(format!("{name} {title}: {ours:?} instead of {digest:?}"));
            }
            if let Some(full) = object(field(golden, "full")).get(title).filter(|_| !accepted)
                && ours.ok().as_deref() != full.as_str()
            {
                different.push(format!("{name} {title}: not {full:?}"));
            }
        }
        for (messages, expected) in
            list(field(&goldens, "continuable")).iter().zip(list(field(golden, "continued")))
        {
            let rendered = template.render(&continued(messages), NOW_UNIX_MS).ok();
            if rendered.as_deref() != expected.as_str() {
                different
                    .push(format!("{name} continued {messages:?}: {rendered:?} instead of {expected:?}"));
            }
        }
        println!("{name}: {} of {} cases differ", different.len() - before, cases.len());
    }
    assert!(different.is_empty(), "{} differences:\n{}", different.len(), different.join("\n"));
}

fn variables<'a>(goldens: &'a Value, case: &'a [Value]) -> (&'a str, Object) {
    let [title, messages, tools, prompt, extra] = case else { panic!("case has five fields") };
    let of = |table: &str, name: &Value| field(field(goldens, table), name.as_str().unwrap()).clone();
    let mut variables = Object::default();
    variables.insert("messages", of("messages", messages));
    variables.insert("tools", of("tools", tools));
    variables.insert("documents", Value::Null);
    variables.insert("add_generation_prompt", prompt.clone());
    variables.insert("bos_token", Value::from("<BOS>"));
    variables.insert("eos_token", Value::from("<EOS>"));
    object(&of("extras", extra))
        .iter()
        .for_each(|(name, value)| variables.insert(name.clone(), value.clone()));
    (title.as_str().unwrap(), variables)
}

fn continued(messages: &Value) -> Chat {
    Chat {
        messages: list(messages).to_vec(),
        tools: None,
        documents: None,
        chat_template: None,
        chat_template_kwargs: Object::default(),
        reasoning_effort: None,
        add_generation_prompt: false,
        continue_final_message: true,
    }
}

fn field<'a>(value: &'a Value, name: &str) -> &'a Value {
    object(value).get(name).unwrap()
}

fn object(value: &Value) -> &Object {
    value.as_object().unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn sha256(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
