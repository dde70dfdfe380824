//! Developer messages for templates that do not know them: vLLM turns them into one system message in front
//! (`_convert_developer_to_system`, `_consolidate_system_messages`).

use crate::openai::{Object, Value};

/// `messages` without the role `developer`; unchanged if it does not occur.
pub(super) fn without_developer(messages: Vec<Value>) -> Vec<Value> {
    if !messages.iter().any(|message| role(message) == Some("developer")) {
        return messages;
    }
    let messages: Vec<Value> = messages.into_iter().map(to_system).collect();
    let is_system = |message: &Value| role(message) == Some("system");
    if !messages.iter().skip(1).any(is_system) {
        return messages;
    }
    let contents: Vec<String> = messages.iter().filter(|message| is_system(message)).map(content).collect();
    let contents: Vec<String> = contents.into_iter().filter(|content| !content.is_empty()).collect();
    let fields = [("role", Value::from("system")), ("content", Value::from(contents.join("\n\n").as_str()))];
    let merged = Value::from(fields.into_iter().collect::<Object>());
    std::iter::once(merged).chain(messages.into_iter().filter(|message| !is_system(message))).collect()
}

fn role(message: &Value) -> Option<&str> {
    message.as_object()?.get("role")?.as_str()
}

fn to_system(message: Value) -> Value {
    match &message {
        Value::Object(fields) if role(&message) == Some("developer") => {
            let mut system: Object = fields
                .iter()
                .filter(|(name, _)| ***name != *"tools")
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect();
            system.insert("role", Value::from("system"));
            Value::from(system)
        }
        _ => message,
    }
}

fn content(message: &Value) -> String {
    match message.as_object().and_then(|message| message.get("content")) {
        Some(Value::String(text)) => text.as_ref().to_owned(),
        Some(Value::Array(parts)) => {
            let text = |part: &Value| part.as_object()?.get("text")?.as_str().map(str::to_owned);
            parts.iter().filter_map(text).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}
