//! A bundle as one entry: a block finds its part by its index and runs that part's code as if it were alone.
//!
//! The parameters are the parts' one after the other and one address of symbol values. Every block has as many threads as
//! the largest part's; those that a part has no use for leave, and barriers wait for those that stay. One piece of shared
//! memory serves whichever part runs in the block.

use super::asm::{Asm, Piece};
use super::{Emitter, Ptx, Seat, dynamic_shared, early, module, shared_offsets};
use crate::bundle::Bundle;
use crate::linear::Count;

impl Ptx {
    pub(super) fn side_by_side(&self, bundle: &Bundle) -> String {
        let parts = bundle.parts();
        let mut asm = Asm::default();
        let index = asm.fresh_r();
        asm.load_name(index, "%ctaid.x");
        let threads = bundle.threads();
        let resident = early::resident(parts, threads);
        let (mut start, mut params) = (0, 0);
        for (next, part) in (1..).zip(parts) {
            assert_eq!(dynamic_shared(part), 0, "{} asks for shared memory at its launch", part.name);
            // Where the next part's blocks begin; none behind the last.
            let end = match part.grid {
                Count::Const(blocks) if (next as usize) < parts.len() => Some(start + blocks.max(0)),
                _ => None,
            };
            if let Some(end) = end {
                let later = asm.p("setp.ge.s32", &[index, Piece::int(end)]);
                asm.jump(later, "part", next);
            }
            let block = match start {
                0 => index,
                _ => asm.r("sub.s32", &[index, Piece::int(start)]),
            };
            let mut e = Emitter::new(part);
            e.asm = asm;
            let settled = bundle.settled()[params..params + part.buffers.len()].to_vec();
            e.seat = Seat { params, block: Some(block), threads, resident, settled };
            self.body(&mut e);
            asm = e.asm;
            if let Some(end) = end {
                asm.line("ret");
                asm.label("part", next);
                start = end;
            }
            params += part.buffers.len();
        }
        let shared = parts.iter().map(|p| shared_offsets(p).1).max().unwrap_or(0);
        let seat = Seat { params, block: None, threads, resident, settled: vec![] };
        module(bundle.name(), params, &seat, shared, self.sm, &asm)
    }
}
