//! Formats for files without a template, recognised by tokens that only one family has.

use crate::text::tokenizer::Tokenizer;

/// A chat format that needs no template in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChatFormat {
    /// `<|im_start|>role … <|im_end|>`: Qwen, SmolLM and many others.
    ChatMl,
    /// `[INST] <<SYS>>`, written as plain text.
    Llama2,
    /// `<|start_header_id|>role<|end_header_id|> … <|eot_id|>`.
    Llama3,
    /// `<start_of_turn>role … <end_of_turn>`.
    Gemma,
    /// `[INST] … [/INST]` as control tokens.
    Mistral,
    /// `<|start|>role<|message|> … <|end|>`, with the channel of an answer in front of its message: gpt-oss.
    Harmony,
    /// `<｜User｜> … <｜Assistant｜> …`, with the words of the system in front: DeepSeek V2.5, V3 and R1.
    DeepSeek,
}

impl ChatFormat {
    /// The format that the tokens of a vocabulary belong to.
    pub fn detect(tokenizer: &Tokenizer) -> Option<Self> {
        let has = |texts: &[&str]| texts.iter().all(|text| tokenizer.token_id(text).is_some());
        let formats = [
            (Self::Llama3, &["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"][..]),
            (Self::ChatMl, &["<|im_start|>", "<|im_end|>"]),
            (Self::Gemma, &["<start_of_turn>", "<end_of_turn>"]),
            (Self::Mistral, &["[INST]", "[/INST]"]),
            (Self::Harmony, &["<|start|>", "<|channel|>", "<|message|>", "<|end|>"]),
            (Self::DeepSeek, &["<｜User｜>", "<｜Assistant｜>"]),
        ];
        let by_tokens = formats.into_iter().find(|(_, texts)| has(texts));
        // Llama 2 has no tokens of its own: what is left of the SentencePiece vocabularies is taken for one.
        let llama2 =
            || (tokenizer.is_sentencepiece() && has(&["<s>", "</s>"])).then_some(Self::Llama2);
        by_tokens.map(|(format, _)| format).or_else(llama2)
    }

    /// The name llama.cpp has for the format.
    pub fn name(self) -> &'static str {
        match self {
            Self::ChatMl => "chatml",
            Self::Llama2 => "llama2",
            Self::Llama3 => "llama3",
            Self::Gemma => "gemma",
            Self::Mistral => "mistral",
            Self::Harmony => "gpt-oss",
            Self::DeepSeek => "deepseek3",
        }
    }

    /// The format as a template.
    pub(super) fn source(self) -> &'static str {
        match self {
            Self::ChatMl => CHATML,
            Self::Llama2 => LLAMA2,
            Self::Llama3 => LLAMA3,
            Self::Gemma => GEMMA,
            Self::Mistral => MISTRAL,
            Self::Harmony => HARMONY,
            Self::DeepSeek => DEEPSEEK,
        }
    }
}

const CHATML: &str = "\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

const LLAMA3: &str = "\
{{- bos_token }}
{%- for message in messages %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";

/// Gemma has no system role; its words go before the first of the user.
const GEMMA: &str = "\
{{- bos_token }}
{%- set ns = namespace(system='') %}
{%- for message in messages %}
{%- if message.role == 'system' %}
{%- set ns.system = ns.system + message.content | trim + '\\n\\n' %}
{%- else %}
{%- set role = 'model' if message.role == 'assistant' else message.role %}
{{- '<start_of_turn>' + role + '\\n' + ns.system + message.content | trim + '<end_of_turn>\\n' }}
{%- set ns.system = '' %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}";

const LLAMA2: &str = "\
{%- set ns = namespace(system='') %}
{%- for message in messages %}
{%- if message.role == 'system' %}
{%- set ns.system = '<<SYS>>\\n' + message.content | trim + '\\n<</SYS>>\\n\\n' %}
{%- elif message.role == 'user' %}
{{- bos_token ~ '[INST] ' ~ ns.system ~ message.content | trim ~ ' [/INST]' }}
{%- set ns.system = '' %}
{%- else %}
{{- ' ' ~ message.content | trim ~ ' ' ~ eos_token }}
{%- endif %}
{%- endfor %}";

const MISTRAL: &str = "\
{{- bos_token }}
{%- set ns = namespace(system='') %}
{%- for message in messages %}
{%- if message.role == 'system' %}
{%- set ns.system = message.content | trim + '\\n\\n' %}
{%- elif message.role == 'user' %}
{{- '[INST] ' ~ ns.system ~ message.content ~ '[/INST]' }}
{%- set ns.system = '' %}
{%- else %}
{{- ' ' ~ message.content | trim ~ eos_token }}
{%- endif %}
{%- endfor %}";

const DEEPSEEK: &str = "\
{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'system' %}
{{- message.content }}
{%- elif message.role == 'assistant' %}
{{- '<｜Assistant｜>' ~ message.content ~ eos_token }}
{%- else %}
{{- '<｜User｜>' ~ message.content }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}";

/// What others call the system's words are instructions of the developer here.
const HARMONY: &str = "\
{%- for message in messages %}
{%- if message.role == 'system' %}
{{- '<|start|>developer<|message|># Instructions\\n\\n' + message.content + '<|end|>' }}
{%- elif message.role == 'assistant' %}
{{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
{%- else %}
{{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}";
