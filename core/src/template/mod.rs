//! Chat templates, rendered as transformers renders them.
