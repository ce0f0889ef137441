//! The families of models, by the names that files give them.

use super::Arch;

/// A family that files name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// What its layers are made of.
    pub arch: Arch,
    /// `general.architecture` of its files.
    pub name: &'static str,
    /// Some of its models, for people.
    pub models: &'static str,
}

const fn family(arch: Arch, name: &'static str, models: &'static str) -> Family {
    Family { arch, name, models }
}

/// Every family that files can have.
pub const FAMILIES: &[Family] = &[
    family(Arch::Llama, "llama", "Llama 2, Llama 3, Mistral, SmolLM2"),
    family(Arch::Qwen2, "qwen2", "Qwen2, Qwen2.5, DeepSeek-R1-Distill-Qwen"),
    family(Arch::Qwen2Moe, "qwen2moe", "Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B"),
    family(Arch::Qwen3, "qwen3", "Qwen3, Qwen3-Embedding"),
    family(Arch::Qwen3Moe, "qwen3moe", "Qwen3-30B-A3B, Qwen3-235B-A22B"),
    family(Arch::Gemma2, "gemma2", "Gemma 2"),
    family(Arch::Gemma3, "gemma3", "Gemma 3"),
    family(Arch::Phi3, "phi3", "Phi-3, Phi-3.5, Phi-4, Phi-4-mini"),
    family(Arch::Granite, "granite", "Granite 3"),
    family(Arch::Olmo2, "olmo2", "OLMo 2"),
    family(Arch::Glm4, "glm4", "GLM-4-0414"),
    family(Arch::GptOss, "gpt-oss", "gpt-oss-20b, gpt-oss-120b"),
    family(Arch::DeepSeek2, "deepseek2", "DeepSeek-V2, V2-Lite, V2.5, V3, R1"),
    family(Arch::Bert, "bert", "BERT, BGE, E5, all-MiniLM (vectors of texts)"),
    family(Arch::NomicBert, "nomic-bert", "nomic-embed-text (vectors of texts)"),
];

/// Names of families that are not supported and whose nearest relative has quite another name.
const RELATIVES: &[(&str, &str)] = &[
    ("arcee", "llama"),
    ("baichuan", "llama"),
    ("chatglm", "glm4"),
    ("command-r", "llama"),
    ("cohere2", "llama"),
    ("deci", "llama"),
    ("deepseek", "qwen2moe"),
    ("ernie4_5", "llama"),
    ("exaone", "llama"),
    ("falcon3", "llama"),
    ("internlm2", "llama"),
    ("jina-bert-v2", "bert"),
    ("minicpm", "granite"),
    ("mistral3", "llama"),
    ("orion", "llama"),
    ("smollm3", "llama"),
    ("stablelm", "llama"),
    ("starcoder2", "llama"),
    ("xverse", "llama"),
];

/// The family of this name.
pub fn family_of(name: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.name == name)
}

/// The family that is nearest to one that is not supported; `None` where nothing is near.
pub fn nearest_family(name: &str) -> Option<&'static Family> {
    let shared = |known: &str| known.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
    let relative = RELATIVES.iter().filter(|(known, _)| name.starts_with(known));
    // Where a family has such a name itself, it is nearer.
    let taken = |known: &str| FAMILIES.iter().any(|family| family.name.starts_with(known));
    let relative = relative.filter(|(known, _)| name == *known || !taken(known));
    if let Some((_, relative)) = relative.max_by_key(|(known, _)| known.len()) {
        return family_of(relative);
    }
    // The name that begins alike, and of several the shortest and first.
    let best = FAMILIES
        .iter()
        .rev()
        .max_by_key(|known| (shared(known.name), usize::MAX - known.name.len()))?;
    let ends_alike = || FAMILIES.iter().find(|known| name.ends_with(known.name));
    if shared(best.name) >= 3 { Some(best) } else { ends_alike() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_family_begins_alike_or_is_a_known_relative() {
        for (name, nearest) in [
            ("llama4", Some("llama")),
            ("qwen3next", Some("qwen3")),
            ("qwen3vlmoe", Some("qwen3")),
            ("qwen2vl", Some("qwen2")),
            ("qwen", Some("qwen2")),
            ("gemma3n", Some("gemma3")),
            ("gemma", Some("gemma2")),
            ("phi2", Some("phi3")),
            ("phimoe", Some("phi3")),
            ("granitehybrid", Some("granite")),
            ("glm4moe", Some("glm4")),
            ("deepseek", Some("qwen2moe")),
            ("deepseek3", Some("deepseek2")),
            ("mistral3", Some("llama")),
            ("modern-bert", Some("bert")),
            ("nomic-bert-moe", Some("nomic-bert")),
            ("rwkv7", None),
            ("", None),
        ] {
            assert_eq!(nearest_family(name).map(|family| family.name), nearest, "{name}");
        }
    }

    #[test]
    fn names_are_unique_and_relatives_are_not_supported_themselves() {
        for (index, family) in FAMILIES.iter().enumerate() {
            assert!(FAMILIES[..index].iter().all(|other| other.name != family.name));
        }
        for (name, relative) in RELATIVES {
            assert!(family_of(name).is_none() && family_of(relative).is_some(), "{name}");
        }
    }
}
