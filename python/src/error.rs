//! Errors of the runtime as Python exceptions. The classes are in `clearway/errors.py`; facts become attributes.

use clearway::GpuError;
use clearway_llm::Error;
use clearway_llm::batch::request::{Failure, Refusal};
use clearway_llm::batch::text::TextFailure;
use clearway_llm::fetch::FetchError;
use clearway_llm::grammar::GrammarError;
use clearway_llm::text::TextError;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

/// A fact of an error.
pub enum Fact {
    Number(u64),
    Seconds(f64),
    Text(Option<String>),
}

/// An exception of a class of `clearway.errors`, with its facts.
pub fn exception(class: &str, message: &str, facts: &[(&str, Fact)]) -> PyErr {
    let make = |py: Python<'_>| {
        let value = py.import("clearway.errors")?.getattr(class)?.call1((message,))?;
        for (name, fact) in facts {
            match fact {
                Fact::Number(number) => value.setattr(*name, *number)?,
                Fact::Seconds(seconds) => value.setattr(*name, *seconds)?,
                Fact::Text(text) => value.setattr(*name, text.as_deref())?,
            }
        }
        Ok(PyErr::from_value(value))
    };
    Python::attach(|py| make(py).unwrap_or_else(|error: PyErr| error))
}

/// An error of the engine.
pub fn engine(error: &Error) -> PyErr {
    let message = error.to_string();
    match error {
        Error::Runtime(error) => runtime(error),
        Error::Fetch(error) => fetch(error),
        Error::TooLarge { weights, cache, memory, context, .. } => exception(
            "OutOfMemoryError",
            &format!("{message}; a smaller max_model_len or a smaller model may fit"),
            &[
                ("weights", Fact::Number(*weights)),
                ("cache", Fact::Number(*cache)),
                ("memory", Fact::Number(*memory)),
                ("context", Fact::Number(*context as u64)),
            ],
        ),
        Error::File(_)
        | Error::Architecture { .. }
        | Error::Parameter { .. }
        | Error::TensorShape { .. }
        | Error::NoVocabulary { .. }
        | Error::Adapter(_)
        | Error::IsAdapter { .. }
        | Error::Text(_) => exception("ModelError", &message, &[]),
        Error::ContextFull { wanted, context } => exception(
            "PromptError",
            &message,
            &[("tokens", Fact::Number(*wanted as u64)), ("context", Fact::Number(*context as u64))],
        ),
        Error::Empty | Error::TokenOutOfRange { .. } | Error::Context { .. } => {
            exception("PromptError", &message, &[])
        }
        _ => exception("GenerationError", &message, &[]),
    }
}

/// An error of the graph runtime.
pub fn runtime(error: &clearway::Error) -> PyErr {
    match error {
        clearway::Error::Gpu(error) => gpu(error),
        other => exception("GraphError", &other.to_string(), &[]),
    }
}

/// An error of a device, or of an op call.
pub fn gpu(error: &GpuError) -> PyErr {
    let message = error.to_string();
    match error {
        GpuError::OutOfMemory { wanted, available, .. } => exception(
            "OutOfMemoryError",
            &message,
            &[("wanted", Fact::Number(*wanted)), ("available", Fact::Number(*available))],
        ),
        GpuError::NoDevice { .. }
        | GpuError::NoAdapter { .. }
        | GpuError::Unsupported { .. }
        | GpuError::Driver { .. }
        | GpuError::DeviceLost { .. }
        | GpuError::Timeout { .. }
        | GpuError::DeviceBusy { .. } => exception("DeviceError", &message, &[]),
        _ => exception("GraphError", &message, &[]),
    }
}

/// An error of a fetch.
pub fn fetch(error: &FetchError) -> PyErr {
    // The messages name the flag of the command line.
    let message = error.to_string().replace("pass -m FILE.gguf", "give the path of a GGUF file");
    match error {
        FetchError::Stopped => PyKeyboardInterrupt::new_err(message),
        FetchError::NoFile { path } => {
            let path = Fact::Text(Some(path.display().to_string()));
            exception("ModelNotFoundError", &message, &[("path", path)])
        }
        FetchError::BadName { name, .. } => {
            let name = Fact::Text(Some(name.clone()));
            exception("ModelNotFoundError", &message, &[("name", name)])
        }
        _ => exception("FetchError", &message, &[]),
    }
}

/// A request that is not accepted.
pub fn refusal(refusal: &Refusal) -> PyErr {
    let message = refusal.to_string();
    match refusal {
        Refusal::TooLong { tokens, context } => exception(
            "PromptError",
            &format!("{message}; a larger max_model_len may hold it"),
            &[("tokens", Fact::Number(*tokens as u64)), ("context", Fact::Number(*context as u64))],
        ),
        Refusal::Full { waiting, expected } => exception(
            "QueueFullError",
            &message,
            &[
                ("waiting", Fact::Number(*waiting as u64)),
                ("retry_after", Fact::Seconds(expected.as_secs_f64())),
            ],
        ),
        Refusal::Draining => exception("ClosedError", &message, &[]),
        _ => exception("PromptError", &message, &[]),
    }
}

/// A text that could not go on.
pub fn failure(failure: &TextFailure) -> PyErr {
    let message = failure.to_string();
    match failure {
        TextFailure::Tokens(Failure::Device(error)) => engine(error),
        TextFailure::Tokens(Failure::Gone) => exception("ClosedError", &message, &[]),
        _ => exception("GenerationError", &message, &[]),
    }
}

/// A grammar that cannot be enforced.
pub fn grammar(error: &GrammarError) -> PyErr {
    let keyword = Fact::Text(error.keyword.clone());
    exception("GrammarError", &error.to_string(), &[("keyword", keyword)])
}

/// A prompt that cannot be made.
pub fn text(error: &TextError) -> PyErr {
    exception("PromptError", &error.to_string(), &[])
}
