//! `--lora FILE[:SCALE]`

use std::path::{Path, PathBuf};

use anyhow::Result;
use clearway_llm::engine::{Adapter, Adapters};

/// Which adapters.
#[derive(clap::Args)]
pub struct LoraArgs {
    /// Adapter of the weights (LoRA): a GGUF file, and a factor on what it changes (1). `serve` takes NAME=FILE, too. May
    /// be given several times.
    #[arg(long, value_name = "FILE[:SCALE]")]
    lora: Vec<Lora>,
}

/// What one `--lora` says.
#[derive(Clone, Debug, PartialEq)]
struct Lora {
    /// All but the scale.
    file: String,
    scale: f32,
}

impl LoraArgs {
    /// Adapters that act on all texts.
    ///
    /// # Errors
    /// A file that cannot be read or is no adapter.
    pub fn for_all(&self) -> Result<Adapters> {
        let list = self.lora.iter().map(|lora| Ok(Adapter::open(&lora.file, lora.scale)?));
        Ok(Adapters::All(list.collect::<Result<_>>()?))
    }

    /// Adapters that texts choose by name: what stands in front of `=`, or else the name of the file without its ending.
    ///
    /// # Errors
    /// A file that cannot be read or is no adapter.
    pub fn by_text(&self) -> Result<Adapters> {
        let open = |lora: &Lora| {
            let (name, path) = lora.named();
            let adapter = Adapter::open(path, lora.scale)?;
            Ok(match name {
                Some(name) => adapter.named(name),
                None => adapter,
            })
        };
        Ok(Adapters::ByText(self.lora.iter().map(open).collect::<Result<_>>()?))
    }
}

impl Lora {
    /// Name and file. A path may have a `=` behind its first separator.
    fn named(&self) -> (Option<&str>, PathBuf) {
        match self.file.split_once('=') {
            Some((name, file)) if !name.is_empty() && Path::new(name).components().count() == 1 => {
                (Some(name), file.into())
            }
            _ => (None, self.file.as_str().into()),
        }
    }
}

impl std::str::FromStr for Lora {
    type Err = String;

    /// The last `:` stands in front of the scale if a number follows it: paths may have others.
    fn from_str(text: &str) -> Result<Self, String> {
        let (file, scale) = match text.rsplit_once(':') {
            Some((file, scale)) => match scale.parse::<f32>() {
                Ok(scale) if scale.is_finite() => (file, scale),
                Ok(_) => return Err(format!("the scale `{scale}` is not a finite number")),
                Err(_) => (text, 1.0),
            },
            None => (text, 1.0),
        };
        match file.is_empty() {
            true => Err("no file is given".to_owned()),
            false => Ok(Self { file: file.to_owned(), scale }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_follows_the_last_colon_and_a_name_stands_in_front() {
        let of = |text: &str| -> Lora { text.parse().unwrap() };
        for (text, file, scale) in [
            ("a.gguf", "a.gguf", 1.0),
            ("a.gguf:0.5", "a.gguf", 0.5),
            ("a.gguf:-2", "a.gguf", -2.0),
            ("C:\\a.gguf", "C:\\a.gguf", 1.0),
            ("x:y.gguf:0", "x:y.gguf", 0.0),
        ] {
            assert_eq!(of(text), Lora { file: file.to_owned(), scale }, "{text}");
        }
        for (text, name, path) in [
            ("sql=dir/a.gguf:2", Some("sql"), "dir/a.gguf"),
            ("dir/a=b.gguf", None, "dir/a=b.gguf"),
            ("=a.gguf", None, "=a.gguf"),
            ("a.gguf", None, "a.gguf"),
        ] {
            assert_eq!(of(text).named(), (name, PathBuf::from(path)), "{text}");
        }
        for wrong in [":1", "", "a.gguf:inf", "a.gguf:nan"] {
            assert!(wrong.parse::<Lora>().is_err(), "{wrong}");
        }
    }
}
