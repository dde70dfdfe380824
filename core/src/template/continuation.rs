//! `continue_final_message`: transformers appends a mark to the last message and cuts the rendered text there.

use super::python;
use crate::openai::Value;

const MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Appends the mark to the last message; the text that was there. None if there is none.
pub(super) fn mark(messages: &mut [Value]) -> Option<String> {
    let last = messages.last_mut()?;
    let mut message = last.as_object()?.clone();
    let (content, text) = match message.get("content")? {
        Value::String(text) => (marked(text), text.as_ref().to_owned()),
        Value::Array(parts) => {
            let mut parts = parts.as_ref().clone();
            let has_text =
                |part: &&mut Value| part.as_object().is_some_and(|part| part.get("text").is_some());
            let part = parts.iter_mut().rev().find(has_text)?;
            let mut fields = part.as_object()?.clone();
            let text = fields.get("text")?.as_str()?.to_owned();
            fields.insert("text", marked(&text));
            *part = Value::from(fields);
            (Value::from(parts), text)
        }
        _ => return None,
    };
    message.insert("content", content);
    *last = Value::from(message);
    Some(text)
}

/// The part of `rendered` before the mark; `end` is the text that was marked. None if the template does not show it.
pub(super) fn cut(mut rendered: String, end: &str) -> Option<String> {
    let mark = MARK.trim_end();
    let place = rendered.rfind(mark)?;
    if !rendered.contains(python::strip(end)) {
        return None;
    }
    let keeps_space = rendered.get(place..)?.starts_with(MARK);
    rendered.truncate(place);
    if !keeps_space {
        // The template trims the message, and so does transformers.
        rendered.truncate(python::strip_end(&rendered).len());
    }
    Some(rendered)
}

fn marked(text: &str) -> Value {
    Value::from([text, MARK].concat().as_str())
}
