//! The feed-forward half of a block: one gated projection, or a choice of experts beside a shared one.
//!
//! In: normed activations `[T, dim]`. Out: what is added to the residual stream.

use crate::config::{Config, Moe};
use crate::weights::{Error, Inputs, Matrix};
use compiler::ops;
use compiler::tensor::Tensor;

pub enum Ffn<'g> {
    Dense(Gated<'g>),
    Moe(Box<Experts<'g>>),
}

impl<'g> Ffn<'g> {
    pub fn declare(i: &Inputs<'g, '_>, c: &Config, layer: i64) -> Result<Self, Error> {
        Ok(match c.moe {
            Some(moe) if c.has_experts(layer) => Ffn::Moe(Box::new(Experts::declare(i, c, moe)?)),
            _ => Ffn::Dense(Gated::declare(i, "", c.dim, &[])?),
        })
    }
    pub fn of(&self, x: Tensor<'g>) -> Tensor<'g> {
        match self {
            Ffn::Dense(f) => f.down.of(f.gate.of_normed(x).silu() * f.up.of_normed(x)),
            Ffn::Moe(f) => f.of(x),
        }
    }
}

/// `down(silu(gate(x)) · up(x))`, once or for each expert of a stack.
pub struct Gated<'g> {
    gate: Matrix<'g>,
    up: Matrix<'g>,
    down: Matrix<'g>,
}

impl<'g> Gated<'g> {
    fn declare(i: &Inputs<'g, '_>, suffix: &str, dim: i64, stack: &[i64]) -> Result<Self, Error> {
        let name = |part: &str| format!("ffn_{part}{suffix}.weight");
        let wide = i.rows(&name("gate")).unwrap_or(dim);
        let dims = |rows, cols| [stack, &[rows, cols]].concat();
        Ok(Gated {
            gate: i.matrix(&name("gate"), &dims(wide, dim))?,
            up: i.matrix(&name("up"), &dims(wide, dim))?,
            down: i.matrix(&name("down"), &dims(dim, wide))?,
        })
    }
    /// x `[.., M, dim]`; leading axes broadcast.
    fn of(&self, x: Tensor<'g>) -> Tensor<'g> {
        let of = |m: &Matrix<'g>| if m.launches_count(x.size(0)) { m.of_normed(x) } else { m.of(x) };
        self.down.of(of(&self.gate).silu() * of(&self.up))
    }
    fn gather(&self, index: Tensor<'g>) -> Gated<'g> {
        let [gate, up, down] = [&self.gate, &self.up, &self.down].map(|m| m.gather(index));
        Gated { gate, up, down }
    }
}

pub struct Experts<'g> {
    moe: Moe,
    router: Matrix<'g>,
    /// Added to the scores for the choice alone.
    bias: Option<Tensor<'g>>,
    experts: Gated<'g>,
    shared: Option<Gated<'g>>,
}

impl<'g> Experts<'g> {
    fn declare(i: &Inputs<'g, '_>, c: &Config, moe: Moe) -> Result<Self, Error> {
        let shared = i.rows("ffn_gate_shexp.weight").is_some();
        Ok(Experts {
            moe,
            router: i.matrix("ffn_gate_inp.weight", &[moe.experts, c.dim])?,
            bias: i.opt_vector("exp_probs_b.bias", moe.experts)?,
            experts: Gated::declare(i, "_exps", c.dim, &[moe.experts])?,
            shared: if shared { Some(Gated::declare(i, "_shexp", c.dim, &[])?) } else { None },
        })
    }

    fn of(&self, x: Tensor<'g>) -> Tensor<'g> {
        let logits = self.router.of_normed_f32(x);
        let (chosen, weights) = ops::router(logits, self.bias, self.moe.router);
        let tokens = x.size(0);
        let y = match self.experts.gate.together(tokens, tokens * self.moe.router.k / self.moe.experts) {
            Some(tile) => self.grouped(x, chosen, tile),
            // [T, k] experts, each on the one row of its token.
            None => self.experts.gather(chosen).of(x.unsqueeze(1).unsqueeze(1)).squeeze(-2),
        };
        let y = (y * weights.unsqueeze(-1)).sum(1).squeeze(1);
        self.shared.as_ref().map_or(y, |s| y + s.of(x))
    }

    /// The chosen experts' answers `[T, k, dim]`, each expert reading its weights once for all of its tokens.
    fn grouped(&self, x: Tensor<'g>, chosen: Tensor<'g>, tile: i64) -> Tensor<'g> {
        let (groups, dim) = (ops::group(chosen, self.moe.experts, tile), x.size(-1));
        let tiles = groups.expert.size(0);
        let rows = x.gather(groups.choice / chosen.size(1)).reshape([tiles, tile, dim]);
        let y = self.experts.gather(groups.expert).of(rows).contiguous();
        y.reshape([tiles * tile, dim]).gather(groups.row)
    }
}
