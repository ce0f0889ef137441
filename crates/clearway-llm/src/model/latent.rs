//! Latent attention: keys and values of all heads are products of one short row of each token, and only that row is kept.
//!
//! Keys are never computed. A score is `q . (K c)`, where `c` is the row and `K` the head's matrix, and that is `(Kt q) . c`: queries are
//! multiplied by the transposed matrix instead, and all heads look at the same rows. What they find is multiplied by the matrix of
//! values behind attention. Beside the row lies a key that turns and that all heads share. So the cache has one head of keys, and the
//! front of each key is its value.

use clearway::{DType, Layout, Ops, TensorView};

use super::experts::FEW_TOKENS;
use super::layer::{Given, Layers, reshape};
use super::shape::Latent;
use super::{HEADS, Result};

impl Layers<'_> {
    /// Attention over the rows of the cache, and the product behind it.
    pub(super) fn latent_attention(
        &mut self,
        layer: usize,
        x: TensorView,
        latent: Latent,
    ) -> Result<Given> {
        let q = self.latent_queries(layer, x, latent)?;
        let cache = self.write_latent(layer, x, latent)?;
        self.latent_found(layer, q, cache, latent)
    }

    /// What queries find in the rows of the cache, and the product behind it.
    pub(super) fn latent_found(
        &mut self,
        layer: usize,
        q: TensorView,
        cache: [TensorView; 2],
        latent: Latent,
    ) -> Result<Given> {
        let y = self.attend(layer, q, cache)?;
        let (tokens, heads) = (self.tokens, self.shape.heads);
        let y = self.of_heads(layer, "attn_v_b", y, latent.value)?;
        let y = reshape(y, &[tokens, heads * latent.value])?;
        self.given(layer, "attn_output", y, self.shape.embd, self.shape.biases.output)
    }

    /// Writes the row of each token and the key that turns into the cache; returns its keys and values.
    pub(super) fn write_latent(
        &mut self,
        layer: usize,
        x: TensorView,
        latent: Latent,
    ) -> Result<[TensorView; 2]> {
        let (tokens, rank, turned) = (self.tokens, latent.kv_rank, self.shape.rope_dims);
        let both = self.linear(layer, "attn_kv_a_mqa", x, rank + turned)?;
        let cache = self.cache(layer, "k")?;
        // Both writes go to the same rows, one after the other: first the one that need not wait for a norm.
        let turning = reshape(both, &[tokens, 1, rank + turned])?;
        let key = self.rotate(layer, "attn_k_rope", part(turning, rank, turned)?)?;
        self.label(layer, "cache_k");
        self.ops.kv_write(key, self.cache_rows, part(cache, rank, turned)?)?;
        let row = self.weighted_norm(layer, "attn_kv_a_norm", part(both, 0, rank)?, rank)?;
        self.label(layer, "cache_row");
        let to = part(cache, 0, rank)?;
        self.ops.kv_write(reshape(row, &[tokens, 1, rank])?, self.cache_rows, to)?;
        Ok([cache, to])
    }

    /// Queries for the rows of the cache: `[T, heads, kv_rank + rope_dims]`.
    pub(super) fn latent_queries(
        &mut self,
        layer: usize,
        x: TensorView,
        latent: Latent,
    ) -> Result<TensorView> {
        let (heads, head) = (self.shape.heads, self.shape.head_dim);
        let q = match latent.q_rank {
            None => self.linear(layer, "attn_q", x, heads * head)?,
            Some(rank) => {
                let row = self.linear(layer, "attn_q_a", x, rank)?;
                let row = self.weighted_norm(layer, "attn_q_a_norm", row, rank)?;
                self.linear(layer, "attn_q_b", row, heads * head)?
            }
        };
        let q = reshape(q, &[self.tokens, heads, head])?;
        let plain = part(q, 0, latent.plain)?;
        let plain = self.of_heads(layer, "attn_k_b", plain, latent.kv_rank)?;
        let turned = part(q, latent.plain, self.shape.rope_dims)?;
        let turned = self.rotate(layer, "attn_q_rope", turned)?;
        self.label(layer, "attn_q_joined");
        self.ops.concat(plain, turned)
    }

    /// Each head of each token times the matrix of its head: a product with experts of which every token uses all, one for each of its
    /// rows.
    fn of_heads(
        &mut self,
        layer: usize,
        name: &str,
        x: TensorView,
        size: usize,
    ) -> Result<TensorView> {
        let heads = self.shape.heads;
        let weight = format!("blk.{layer}.{name}.weight");
        let weight = self.matrix(&weight, &[heads, size, x.layout.cols()])?;
        let ids = self.head_numbers()?;
        self.label(layer, name);
        match self.head_order {
            Some(order) => self.ops.matmul_experts_in_order(x, weight, ids, order),
            None => self.ops.matmul_experts(x, weight, ids),
        }
    }

    /// The numbers of the heads for each token, and their order where a device wants one: once for all layers.
    fn head_numbers(&mut self) -> Result<TensorView> {
        let (tokens, heads) = (self.tokens, self.shape.heads);
        let numbers = match self.heads {
            Some(numbers) => numbers,
            None => self.ops.external(HEADS, DType::U32, &[heads])?,
        };
        self.heads = Some(numbers);
        // One row, repeated.
        let all = Layout::new(DType::U32, &[tokens, heads])?.with_strides(&[0, 1])?;
        let all = numbers.reinterpret(0, all)?;
        if self.head_order.is_none() && self.options.order_experts && tokens > FEW_TOKENS {
            self.ops.set_label("head_order");
            self.head_order = Some(self.ops.expert_order(all, heads)?);
        }
        Ok(all)
    }
}

/// Elements `from` to `from + size` of each row.
fn part(x: TensorView, from: usize, size: usize) -> Result<TensorView> {
    let layout = &x.layout;
    let mut shape: Vec<usize> = layout.dims().iter().map(|&dim| dim as usize).collect();
    let strides = layout.strides4();
    let strides: Vec<usize> =
        strides[strides.len() - shape.len()..].iter().map(|&stride| stride as usize).collect();
    if let Some(last) = shape.last_mut() {
        *last = size;
    }
    let first = (from * layout.dtype().block_bytes()) as u64;
    Ok(x.reinterpret(first, Layout::new(layout.dtype(), &shape)?.with_strides(&strides)?)?)
}
