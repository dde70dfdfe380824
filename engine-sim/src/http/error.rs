//! Errors in vLLM's shape: `{"error": {"message", "type", "param", "code"}}`.

use crate::engine::SubmitError;
use crate::scheduler::Refused;
use crate::text::PromptError;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// An answer that is no completion.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<&'static str>,
}

impl ApiError {
    pub(super) fn bad_request(message: impl ToString, param: Option<&'static str>) -> ApiError {
        ApiError {
            status: StatusCode::BAD_REQUEST,
            kind: "BadRequestError",
            message: message.to_string(),
            param,
        }
    }

    pub(super) fn unknown_model(model: &str) -> ApiError {
        ApiError {
            status: StatusCode::NOT_FOUND,
            kind: "NotFoundError",
            message: format!("The model `{model}` does not exist."),
            param: Some("model"),
        }
    }

    pub(super) fn too_long(limit: u32, what: impl std::fmt::Display) -> ApiError {
        let message = format!(
            "This model's maximum context length is {limit} tokens. However, your request has {what}. Please reduce \
             the length of the input messages."
        );
        ApiError::bad_request(message, Some("input_tokens"))
    }

    pub(super) fn of_prompt(error: PromptError, limit: u32) -> ApiError {
        match error {
            PromptError::TooLong { bytes } => ApiError::too_long(limit, format!("a prompt of {bytes} bytes")),
            error => ApiError::bad_request(error, None),
        }
    }

    pub(super) fn internal(message: impl ToString) -> ApiError {
        ApiError {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            kind: "InternalServerError",
            message: message.to_string(),
            param: None,
        }
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> ApiError {
        match error {
            SubmitError::Refused(Refused::TooLong { tokens, limit }) => {
                ApiError::too_long(limit, format!("{tokens} tokens"))
            }
            SubmitError::Refused(Refused::Empty) => {
                ApiError::bad_request("The prompt has no tokens.", Some("prompt"))
            }
            SubmitError::Busy | SubmitError::Stopped => ApiError {
                status: StatusCode::SERVICE_UNAVAILABLE,
                kind: "ServiceUnavailableError",
                message: error.to_string(),
                param: None,
            },
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let code = self.status.as_u16();
        let error = json!({"message": self.message, "type": self.kind, "param": self.param, "code": code});
        (self.status, axum::Json(json!({ "error": error }))).into_response()
    }
}
