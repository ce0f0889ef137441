//! Drafts of what comes next: the flags that `run`, `chat` and `bench` share.

use std::sync::Arc;

use anyhow::{Result, bail};
use clearway::Device;
use clearway_llm::engine::model_shape;
use clearway_llm::fetch::ModelName;
use clearway_llm::speculate::DraftModel;
use clearway_llm::{Model, Speculation};

use crate::model::{self, EngineArgs};

/// Who drafts.
#[derive(clap::Args)]
pub struct SpecArgs {
    /// Check drafts of what comes next as extra rows of one step, as long as that pays. The text stays the same.
    #[arg(long, value_name = "KIND", requires_if("draft", "draft"))]
    spec: Option<Spec>,
    /// Model that drafts, smaller and with the same vocabulary; means --spec draft.
    #[arg(long, value_name = "MODEL")]
    draft: Option<ModelName>,
}

/// What `--spec` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Spec {
    /// No drafts.
    Off,
    /// What followed the last tokens when they were there before.
    Ngram,
    /// A second model (--draft).
    Draft,
}

impl SpecArgs {
    /// Who drafts; an error where the flags contradict each other.
    pub fn kind(&self) -> Result<Spec> {
        match (self.spec, &self.draft) {
            (None | Some(Spec::Draft), Some(_)) => Ok(Spec::Draft),
            (Some(Spec::Draft), None) => {
                bail!("--spec draft needs a model that drafts: --draft MODEL")
            }
            (Some(Spec::Ngram | Spec::Off), Some(_)) => {
                bail!("--draft names a model that drafts; leave it out, or take --spec draft")
            }
            (spec, None) => Ok(spec.unwrap_or(Spec::Off)),
        }
    }

    /// Lets a model draft, where the flags say so.
    pub fn apply(
        &self,
        model: &mut Model,
        device: &Arc<dyn Device>,
        engine: &EngineArgs,
    ) -> Result<()> {
        let speculation = match (self.kind()?, &self.draft) {
            (Spec::Off, _) => None,
            (Spec::Ngram, _) | (Spec::Draft, None) => Some(Speculation::ngram()),
            (Spec::Draft, Some(name)) => {
                let gguf = model::open(name)?;
                // As long a text as the model's own, as far as the other one reaches.
                let context = model.engine().context().min(model_shape(&gguf)?.context);
                let (options, vocabulary) = (engine.options(Some(context)), model.tokenizer());
                let drafter = model::loading(&gguf, |progress| {
                    DraftModel::new(&gguf, vocabulary, device.clone(), options, progress)
                })?;
                Some(Speculation::new(drafter))
            }
        };
        model.speculate(speculation);
        Ok(())
    }
}
