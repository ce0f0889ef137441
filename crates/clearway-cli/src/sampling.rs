//! How tokens are chosen: the flags that `run` and `chat` share.

use clearway_llm::Sampling as Row;
use clearway_llm::engine::Penalties;

/// How tokens are chosen.
#[derive(clap::Args)]
pub struct Sampling {
    /// Temperature; 0 takes the likeliest token.
    #[arg(long, value_name = "T", default_value_t = 0.8, value_parser = not_negative)]
    temp: f32,
    /// Only the K likeliest tokens; 0 for all.
    #[arg(long, value_name = "K", default_value_t = 40)]
    top_k: usize,
    /// Only the likeliest tokens that together have probability P.
    #[arg(long, value_name = "P", default_value_t = 0.95, value_parser = probability)]
    top_p: f32,
    /// Only tokens at least P times as likely as the likeliest.
    #[arg(long, value_name = "P", default_value_t = 0.05, value_parser = probability)]
    min_p: f32,
    /// Penalty on recent tokens; 1 for none.
    #[arg(long, value_name = "R", default_value_t = 1.0, value_parser = not_negative)]
    repeat_penalty: f32,
    /// Seed: the same seed gives the same text on the same device.
    #[arg(short = 's', long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
}

impl Sampling {
    /// The row of sampling data of a text of at most `budget` tokens.
    pub fn row(&self, budget: usize) -> Row {
        Row {
            seed: self.seed,
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            penalties: Penalties { repeat: self.repeat_penalty, ..Penalties::default() },
            budget,
            ..Row::default()
        }
    }
}

fn not_negative(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("a number of at least 0 is needed".into()),
    }
}

fn probability(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if (0.0..=1.0).contains(&value) => Ok(value),
        _ => Err("a number from 0 to 1 is needed".into()),
    }
}
