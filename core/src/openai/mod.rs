//! The OpenAI request body.
