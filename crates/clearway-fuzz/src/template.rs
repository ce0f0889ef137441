//! One step of fuzzing the chat templates, shared by libFuzzer, the loop and the tests.

use clearway_llm::text::{ChatMessage, ChatOptions, ChatTemplate};

/// Runs the bytes as a chat template. Whatever they are, there is an error or a prompt. Says whether there was a prompt.
pub fn fuzz_template(data: &[u8]) -> bool {
    let source = String::from_utf8_lossy(data);
    let messages = [ChatMessage::new("system", "a"), ChatMessage::new("user", "b c\n")];
    let result = ChatTemplate::new(&source, Some("<s>"), Some("</s>"))
        .and_then(|template| template.render(&messages, &ChatOptions::default()));
    if let Err(error) = &result {
        // The engine's panics come back as an error, so as not to take the program down.
        assert!(!error.to_string().contains("broke down"), "{error}");
    }
    result.is_ok()
}
