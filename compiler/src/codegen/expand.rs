//! Register tiles and unrolled ranges become copies.
//!
//! In: a scheduled kernel. Out: for each stage the list of its stores, in which no `Upcast` or `Unroll` range is left:
//! an output range gives copies of the store, a reduced one copies of the fold's body. Copies share what they have in
//! common, because equal nodes are one node.

use crate::graph::{Ex, Graph, Id, Kind, Op, rebuild, topo};
use crate::kernel::{Illegal, Scheduled, byte_factors, mma};
use crate::rewrite::substitute;
use crate::rules::{simplify, sum::affine};
use crate::scalar::Fold;
use std::collections::HashMap;

/// Most copies of one store or fold.
const COPIES: i64 = 256;

pub fn expand<'g>(s: &Scheduled<'g>) -> Result<Vec<Vec<Ex<'g>>>, Illegal> {
    let g = s.kernel.g;
    s.kernel
        .stages
        .iter()
        .enumerate()
        .map(|(i, stage)| {
            let store = unroll_folds(g, stage.store, s.warp(i).map(|w| w.part))?;
            let store = match s.warp(i) {
                Some(warp) => mma::fragments(g, store, warp)?,
                None => store,
            };
            let store = match s.tile {
                Some(m) if topo(&[store]).contains(&m) => tile(g, store, m)?,
                _ => store,
            };
            let copied: Vec<Ex> = topo(&[store]).into_iter().filter(|e| is_copied(*e)).collect();
            let mut order: Vec<Ex> = s.kernel.rows.iter().chain(&stage.outs).copied().collect();
            order.retain(|r| copied.contains(r));
            let stores = copies(g, &[store], &order)?;
            Ok(simplify(&stores))
        })
        .collect()
}

fn is_copied(e: Ex) -> bool {
    matches!(e.op(), Op::Range(_, Kind::Upcast | Kind::Unroll))
}

/// `roots` once for every value of the ranges, the last range fastest.
fn copies<'g>(g: &'g Graph, roots: &[Ex<'g>], ranges: &[Ex<'g>]) -> Result<Vec<Ex<'g>>, Illegal> {
    let extents: Vec<i64> =
        ranges.iter().map(|r| r.arg(0).as_int().expect("copied ranges are constant")).collect();
    let total: i64 = extents.iter().product();
    if total * roots.len() as i64 > COPIES {
        return Err(Illegal(format!("{total} copies of {} expressions are too many", roots.len())));
    }
    let mut out = vec![];
    for n in 0..total {
        let mut rest = n;
        let mut map: HashMap<Id, Ex> = HashMap::new();
        for (r, e) in ranges.iter().zip(&extents).rev() {
            map.insert(r.id, g.int(rest % e));
            rest /= e;
        }
        out.extend(substitute(roots, &map));
    }
    Ok(out)
}

/// `kept` is left as it is.
fn unroll_folds<'g>(g: &'g Graph, store: Ex<'g>, kept: Option<Ex<'g>>) -> Result<Ex<'g>, Illegal> {
    let mut error = None;
    let new = rebuild(&[store], |e, args| {
        let Op::Fold(fold, n) = e.op() else { return e.with_args(&args) };
        let (bodies, over) = args.split_at(n as usize);
        let (unrolled, kept): (Vec<Ex>, Vec<Ex>) =
            over.iter().partition(|r| is_copied(**r) && Some(**r) != kept);
        if unrolled.is_empty() {
            return e.with_args(&args);
        }
        match copies(g, bodies, &unrolled) {
            Ok(bodies) => {
                let bodies = simplify(&bodies);
                let n = bodies.len() as u32;
                g.make(Op::Fold(fold, n), e.dtype(), &[bodies, kept].concat())
            }
            Err(why) => {
                error = Some(why);
                e
            }
        }
    });
    error.map_or(Ok(new[0]), Err)
}

/// Byte products of 16 rows `m` become one tile product, of which each row is a part.
fn tile<'g>(g: &'g Graph, store: Ex<'g>, m: Ex<'g>) -> Result<Ex<'g>, Illegal> {
    let mut error = None;
    let mut refuse = |why: &str| error = Some(Illegal(format!("tile: {why}")));
    let new = rebuild(&[store], |e, args| {
        let e = e.with_args(&args);
        let Op::Fold(Fold::Sum, n) = e.op() else { return e };
        let bodies = &args[..n as usize];
        let Some(factors) = bodies.iter().map(|b| byte_factors(*b)).collect::<Option<Vec<_>>>() else {
            return e;
        };
        let four = |r: &Ex| r.arg(0).as_int() == Some(4) && matches!(r.op(), Op::Range(_, Kind::Vector));
        let lanes = match args[n as usize..] {
            [r] if four(&r) => r,
            _ => {
                refuse("the reduction under the tile must be unrolled but for its inner four");
                return e;
            }
        };
        let part = |x: Ex<'g>| match (x.op(), x.args().len()) {
            (Op::Load, 2) => affine(x.arg(1), &[m, lanes]).map(|(base, s)| (x.arg(0), base, s)),
            _ => None,
        };
        let Some(rows) = factors.iter().map(|(_, x)| part(*x)).collect::<Option<Vec<_>>>() else {
            refuse("the rows are no plain loads");
            return e;
        };
        let (mem, base, stride) = (rows[0].0, rows[0].1, rows[0].2[0]);
        let follows = |(j, r): (usize, &(Ex<'g>, Ex<'g>, Vec<i64>))| {
            let next = simplify(&[base + 4 * j as i64])[0];
            r.0 == mem && r.1 == next && r.2 == [stride, 1]
        };
        if !rows.iter().enumerate().all(follows) || rows.len() > 16 || factors.iter().any(|f| depends(f.0, m))
        {
            refuse("the rows are not consecutive, or the columns depend on them");
            return e;
        }
        let mut parts = vec![mem, base + lanes];
        parts.extend(factors.iter().map(|f| f.0));
        let t = g.make(Op::TileDot(stride), e.dtype(), &parts);
        let row = g.make(Op::TileRow, e.dtype(), &[t, m]);
        g.make(Op::Fold(Fold::Sum, 1), e.dtype(), &[row, lanes])
    });
    error.map_or(Ok(new[0]), Err)
}

fn depends(e: Ex, on: Ex) -> bool {
    topo(&[e]).contains(&on)
}
