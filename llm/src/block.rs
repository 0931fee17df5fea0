//! One decoder layer of any model.
//!
//! In: the residual stream `[T, dim]`. Out: the stream after the layer, and the layer's caches.

use crate::attention::{Attention, Place, WithCaches};
use crate::config::Config;
use crate::ffn::Ffn;
use crate::weights::{Error, Inputs};
use compiler::ops::rms_norm;
use compiler::tensor::Tensor;

pub struct Block<'g> {
    attention_norm: Tensor<'g>,
    attention: Attention<'g>,
    ffn_norm: Tensor<'g>,
    ffn: Ffn<'g>,
}

impl<'g> Block<'g> {
    pub fn declare(i: &Inputs<'g, '_>, c: &Config, layer: i64) -> Result<Block<'g>, Error> {
        Ok(Block {
            attention_norm: i.vector("attn_norm.weight", c.dim)?,
            attention: Attention::declare(i, c)?,
            ffn_norm: i.vector("ffn_norm.weight", c.dim)?,
            ffn: Ffn::declare(i, c, layer)?,
        })
    }

    pub fn of(&self, x: Tensor<'g>, caches: &[Tensor<'g>], c: &Config, at: &Place<'g>) -> WithCaches<'g> {
        let (y, caches) = self.attention.of(rms_norm(x, self.attention_norm, c.eps), caches, c, at);
        let h = x + y;
        (h + self.ffn.of(rms_norm(h, self.ffn_norm, c.eps)), caches)
    }
}
