//! Sums of bf16 products on a tile unit.
//!
//! In: a kernel of one stage whose sums are of products of bf16, as loops. Out: the same in stages. One for each kind of
//! weights writes what all tokens share into local memory as the unit reads it: 32 inputs in 16 pairs, of each pair 16
//! rows. The next multiplies tiles of 16 tokens with them, two by two, into local memory, another the tile that is left.
//! The last finishes what is left of the expression.

use super::{Illegal, Scheduled};
use crate::dtype::DType;
use crate::graph::{Ex, Id, Kind, Op, topo};
use crate::rewrite::substitute;
use crate::rules::simplify1;
use crate::rules::sum::affine;
use crate::scalar::Fold;
use crate::schedule::{Stage, half_factors};
use std::collections::HashMap;

/// Rows and columns of a tile; a step of the unit takes twice as many inputs.
const TILE: i64 = 16;
const STEP: i64 = 32;
/// Elements of a step's weights.
const WEIGHTS: i64 = TILE * STEP;

/// Bytes of activations that stay in a core's cache while weights pass by, and of unpacked weights.
const ACTIVATIONS: i64 = 1 << 20;
const UNPACKED: i64 = 1 << 20;

/// Tiles of tokens that weights are unpacked for at most, and where nobody knows how many inputs there will be.
const MOST: i64 = 32;
const SOME: i64 = 16;

/// Pairs of rows that pass by the same tokens, at most; so many grid indices are left for threads to share.
const MORE: i64 = 4;
const ITEMS: i64 = 16;

macro_rules! refuse { ($($t:tt)*) => { return Err(Illegal(format!($($t)*))) } }

/// The range of the tokens, or those of tiles of tokens and of the tokens in one.
#[derive(Clone, Copy)]
enum Tokens<'g> {
    Rows(Ex<'g>),
    Tiles(Ex<'g>, Ex<'g>),
}

/// A sum of products: the fold, what depends on the tokens, what does not, and the ranges summed over.
pub(super) struct Product<'g> {
    fold: Ex<'g>,
    pub tokens: Ex<'g>,
    pub weights: Ex<'g>,
    pub over: Vec<Ex<'g>>,
}

pub(super) fn products<'g>(store: Ex<'g>, across: Ex<'g>) -> Option<Vec<Product<'g>>> {
    let folds = topo(&[store]).into_iter().filter(|e| matches!(e.op(), Op::Fold(..)));
    let (halves, others): (Vec<Ex>, Vec<Ex>) = folds.partition(|e| half_factors(e.arg(0)).is_some());
    // Other sums are finished with the rest, unless they are of such products.
    if topo(&others).iter().any(|e| halves.contains(e)) {
        return None;
    }
    let product = |fold: Ex<'g>| {
        let (Op::Fold(Fold::Sum, 1), [body, over @ ..]) = (fold.op(), &fold.args()[..]) else { return None };
        let (a, b) = half_factors(*body)?;
        let (tokens, weights) = match [a, b].map(|x| topo(&[x]).contains(&across)) {
            [true, false] => (a, b),
            [false, true] => (b, a),
            _ => return None,
        };
        Some(Product { fold, tokens, weights, over: over.to_vec() })
    };
    halves.into_iter().map(product).collect::<Option<Vec<_>>>().filter(|p| !p.is_empty())
}

/// Can the tokens along this range go through a tile unit?
pub fn sums_tiles<'g>(store: Ex<'g>, across: Ex<'g>) -> bool {
    let enough = across.arg(0).as_int().is_none_or(|n| n >= TILE);
    let taken = |all: Vec<Product<'g>>| all.iter().all(|p| p.weights.dtype() == DType::BF16);
    enough && products(store, across).is_some_and(taken)
}

pub(super) fn multiple(extent: Ex, of: i64) -> bool {
    simplify1(extent % of).as_int() == Some(0)
}

/// The number of elements by which loads below `e` walk along a range; the smallest.
fn stride(e: Ex, range: Ex) -> i64 {
    let loads = topo(&[e]).into_iter().filter(|e| e.op() == Op::Load);
    let strides = loads.filter_map(|l| Some(affine(l.arg(1), &[range])?.1[0])).filter(|s| *s != 0);
    strides.map(i64::abs).min().unwrap_or(i64::MAX)
}

impl<'g> Scheduled<'g> {
    /// Sends the tokens along `axis` through the tile unit.
    pub(super) fn keep_tiles(&mut self, axis: usize) -> Result<(), Illegal> {
        if self.kernel.stages.len() > 1 || self.axes.iter().any(|a| a.kind() != Kind::Serial) {
            refuse!("tiles come before other options, and for a kernel of one stage");
        }
        let across = self.axes[axis].range;
        let stage = &self.kernel.stages[0];
        let Some(found) = products(stage.store, across) else {
            refuse!("tiles: other sums than of bf16 products")
        };
        let depends = |e: Ex<'g>, r: Ex<'g>| topo(&[e]).contains(&r);
        let own = |r: &Ex<'g>| found.iter().all(|p| depends(p.weights, *r) && !depends(p.tokens, *r));
        let columns: Vec<Ex> = self.kernel.rows.iter().chain(&stage.outs).copied().filter(own).collect();
        let near = |r: &&Ex<'g>| (r.arg(0).as_int() != Some(TILE), stride(found[0].weights, **r));
        let Some(&column) = columns.iter().filter(|r| multiple(r.arg(0), TILE)).min_by_key(near) else {
            refuse!("tiles: no {TILE} rows of weights side by side")
        };
        // Tokens may lie in tiles already: 16 rows of a step side by side, then the next step.
        let outs = self.kernel.rows.iter().chain(&stage.outs).copied();
        let theirs = |r: &Ex<'g>| found.iter().all(|p| depends(p.tokens, *r) && !depends(p.weights, *r));
        let theirs: Vec<Ex> = outs.filter(theirs).collect();
        let lies = |r: &&Ex<'g>| r.arg(0).as_int() == Some(TILE) && stride(found[0].tokens, **r) == STEP;
        let within = theirs.iter().copied().find(|r| lies(&r));
        let tiled = within.and_then(|within| {
            let rest = theirs.iter().copied().filter(|r| *r != within);
            Some((rest.max_by_key(|r| (*r == across, r.arg(0).bounds().1))?, within))
        });
        let inputs: i64 = found[0].over.iter().map(|r| r.arg(0).bounds().1).product();
        let alone = found.len() == 1;
        let (lanes, rows) = match column.arg(0).as_int() {
            Some(TILE) => (column, columns.iter().copied().rfind(|r| *r != column)),
            _ => {
                let (outer, inner) = self.divide(column, TILE);
                (inner, Some(outer))
            }
        };
        // Two rows of tiles, if there are no two kinds of weights.
        let fits = alone && 2 * inputs * TILE * 2 <= UNPACKED;
        let mut rest: Vec<Ex> = columns.into_iter().filter(|r| *r != column && Some(*r) != rows).collect();
        let pair = match rows.filter(|r| fits && multiple(r.arg(0), 2)) {
            Some(r) if r.arg(0).as_int() == Some(2) => Some(r),
            Some(r) => {
                let (outer, inner) = self.divide(r, 2);
                rest.push(outer);
                Some(inner)
            }
            None => {
                rest.extend(rows);
                None
            }
        };
        let known = found[0].over.iter().all(|r| r.arg(0).as_int().is_some());
        let more = if known { self.more(rest, 2 * TILE * 2 * inputs) } else { vec![] };
        let most = match more.is_empty() {
            false => MOST,
            true if known => (ACTIVATIONS / (2 * inputs * TILE)).clamp(4, MOST),
            true => SOME,
        };
        let part = |extent: Ex, of: i64| {
            let n = extent.as_int()?;
            (1..=most).rev().map(|tiles| tiles * of).find(|c| n % c == 0).filter(|c| *c < n)
        };
        let tokens = match tiled {
            Some((tiles, within)) => {
                let part = part(tiles.arg(0), 1);
                Tokens::Tiles(part.map_or(tiles, |n| self.divide(tiles, n).1), within)
            }
            None => {
                let part = part(across.arg(0), TILE);
                Tokens::Rows(part.map_or(across, |n| self.divide(across, n).1))
            }
        };
        self.stages_of_tiles(tokens, lanes, pair, &more)
    }

    /// What of these ranges of rows passes by the same tokens, as far as there is room for that many `bytes` each.
    fn more(&mut self, mut ranges: Vec<Ex<'g>>, bytes: i64) -> Vec<Ex<'g>> {
        ranges.sort_by_key(|r| r.arg(0).bounds().1);
        let mut items: i64 = ranges.iter().map(|r| r.arg(0).bounds().1).product();
        let (mut room, mut more) = ((UNPACKED / bytes).min(MORE), vec![]);
        for r in ranges {
            let fits = |m: &i64| multiple(r.arg(0), *m);
            let Some(m) = (2..=room.min(items / ITEMS)).rev().find(fits) else { continue };
            more.push(if r.arg(0).as_int() == Some(m) { r } else { self.divide(r, m).1 });
            (room, items) = (room / m, items / m);
        }
        more
    }

    /// Splits a range into loops outside and inside.
    fn divide(&mut self, range: Ex<'g>, n: i64) -> (Ex<'g>, Ex<'g>) {
        let at = self.axes.iter().position(|a| a.range == range).expect("an axis");
        self.split(at, n, Kind::Serial, false);
        (self.axes[at].range, self.axes.last().expect("just split").range)
    }

    fn stages_of_tiles(
        &mut self,
        place: Tokens<'g>,
        lanes: Ex<'g>,
        pair: Option<Ex<'g>>,
        more: &[Ex<'g>],
    ) -> Result<(), Illegal> {
        let g = self.kernel.g;
        let stage = self.kernel.stages[0].clone();
        let across = match place {
            Tokens::Rows(r) | Tokens::Tiles(_, r) => r,
        };
        let found = products(stage.store, across).expect("splitting keeps products");
        let (tokens, mut over) = (found[0].tokens, found[0].over.clone());
        if found.len() > 2 || found.iter().any(|p| p.tokens != tokens || p.over != over) {
            refuse!("tiles: sums of different activations, or too many");
        }
        let (Op::Load, [a_mem, at]) = (tokens.op(), &tokens.args()[..]) else {
            refuse!("tiles: the activations are no plain loads")
        };
        let Some((_, strides)) = affine(*at, &[&[across], &over[..]].concat()) else {
            refuse!("tiles: the activations are no rows")
        };
        let by: HashMap<Id, i64> = over.iter().zip(&strides[1..]).map(|(r, s)| (r.id, *s)).collect();
        over.sort_by_key(|r| std::cmp::Reverse(by[&r.id]));
        let (&last, outer) = over.split_last().expect("a fold has ranges");
        let whole = last.arg(0).as_int() == Some(STEP);
        let (step, mut apart) = match place {
            Tokens::Rows(_) => (STEP, last.arg(0).as_int()),
            Tokens::Tiles(..) => (WEIGHTS, Some(WEIGHTS).filter(|_| whole)),
        };
        if by[&last.id] != 1 || !multiple(last.arg(0), STEP) {
            refuse!("tiles: the inputs are no multiple of {STEP} side by side");
        }
        for r in outer.iter().rev() {
            if apart != Some(by[&r.id]) {
                refuse!("tiles: the inputs are not side by side");
            }
            apart = apart.and_then(|n| Some(n * r.arg(0).as_int()?));
        }
        let steps = simplify1(over.iter().fold(g.int(1), |n, r| n * r.arg(0)) / STEP);
        let most_steps = steps.bounds().1;
        let groups = if pair.is_some() { 2 } else { found.len() as i64 };
        let count = match place {
            Tokens::Rows(r) => r.arg(0),
            Tokens::Tiles(t, _) => simplify1(t.arg(0) * TILE),
        };
        let most = (count.bounds().1 + TILE - 1) / TILE * TILE;
        let units: i64 = more.iter().map(|r| r.arg(0).bounds().1).product();
        let weights = g.make(Op::Local(0), DType::BF16, &[g.int(units * groups * most_steps * WEIGHTS)]);
        let sums = g.make(Op::Local(1), DType::F32, &[g.int(units * groups * most * TILE)]);
        let of_unit = |unit: &[Ex<'g>], group: Ex<'g>| {
            let unit = unit.iter().fold(g.int(0), |at, r| at * r.arg(0) + *r);
            simplify1(unit * groups + group)
        };
        let own = |extent: Ex<'g>| g.new_range(extent, Kind::Serial);

        let tiles = simplify1((count + (TILE - 1)) / TILE);
        // Nothing is unpacked or multiplied for no tokens.
        let any = if tiles.as_int().is_some() { g.int(1) } else { tiles.min(1) };
        let mut stages = vec![];
        for (p, product) in found.iter().enumerate() {
            let unit: Vec<Ex> = more.iter().map(|r| own(r.arg(0))).collect();
            let group = pair.map(|_| own(g.int(2)));
            let extents =
                outer.iter().enumerate().map(|(i, r)| if i == 0 { r.arg(0) * any } else { r.arg(0) });
            let copies: Vec<Ex> = extents.map(|n| own(simplify1(n))).collect();
            let block = (!whole).then(|| own(simplify1(last.arg(0) / STEP)));
            let [two, lane, side] = [TILE, TILE, 2].map(|n| own(g.int(n)));
            let element = block.map_or(g.int(0), |b| b * STEP) + two * 2 + side;
            let mut map: HashMap<Id, Ex> = outer.iter().map(|r| r.id).zip(copies.iter().copied()).collect();
            map.extend([(last.id, element), (lanes.id, lane)]);
            map.extend(pair.zip(group).map(|(r, own)| (r.id, own)));
            map.extend(more.iter().zip(&unit).map(|(r, own)| (r.id, *own)));
            let terms = outer.iter().zip(&copies).map(|(r, &c)| c * (by[&r.id] / step));
            let at = terms.chain(block).reduce(|a, b| a + b).unwrap_or(g.int(0));
            let at = of_unit(&unit, group.unwrap_or(g.int(p as i64))) * most_steps + at;
            let at = (at * TILE + two) * STEP + lane * 2 + side;
            let value = substitute(&[product.weights], &map)[0];
            let outs = unit.into_iter().chain(group).chain(copies).chain(block).chain([two, lane, side]);
            let store = g.make(Op::Store, DType::BF16, &[weights, at, value]);
            stages.push(Stage { outs: outs.collect(), store });
        }

        // Where a tile's tokens begin: the last tile ends with the last token.
        let begin = |tile: Ex<'g>| match count.as_int() {
            Some(n) if n % TILE == 0 => tile * TILE,
            _ => (tile * TILE).min(count - TILE),
        };
        // Tiles two by two, then the one that is left.
        let (pairs, odd) = (simplify1(tiles / 2), simplify1(tiles % 2));
        for (rounds, together) in [(pairs, 2), (odd, 1)] {
            if rounds.as_int() == Some(0) {
                continue;
            }
            let (round, unit): (_, Vec<Ex>) = (own(rounds), more.iter().map(|r| own(r.arg(0))).collect());
            let which = (together == 2).then(|| g.new_range(g.int(2), Kind::Upcast));
            let tile = which.map_or((tiles - 1).max(0), |w| round * 2 + w);
            let group = (groups > 1).then(|| g.new_range(g.int(groups), Kind::Upcast));
            let of_group = of_unit(&unit, group.unwrap_or(g.int(0)));
            let mut first: HashMap<Id, Ex> = over.iter().map(|r| (r.id, g.int(0))).collect();
            match place {
                Tokens::Rows(r) => first.extend([(r.id, begin(tile))]),
                Tokens::Tiles(t, within) => first.extend([(t.id, tile), (within.id, g.int(0))]),
            }
            let [to, from] = [(of_group * most + tile * TILE) * TILE, substitute(&[*at], &first)[0]];
            let of_weights = of_group * (most_steps * WEIGHTS);
            let [stride, step, steps] = [g.int(strides[0]), g.int(step), simplify1(steps * any)];
            let args = [sums, *a_mem, weights, to, from, of_weights, stride, step, steps];
            let outs = [round].into_iter().chain(unit).chain(which).chain(group).collect();
            stages.push(Stage { outs, store: g.make(Op::TileProduct, DType::F32, &args) });
        }

        let row = match place {
            Tokens::Rows(r) => simplify1(r / TILE * TILE + r - begin(r / TILE)),
            Tokens::Tiles(t, within) => t * TILE + within,
        };
        let sum = |(p, product): (usize, &Product<'g>)| {
            let at = (of_unit(more, pair.unwrap_or(g.int(p as i64))) * most + row) * TILE + lanes;
            (product.fold.id, g.make(Op::Load, DType::F32, &[sums, at]))
        };
        let loads: HashMap<Id, Ex> = found.iter().enumerate().map(sum).collect();
        let outs: Vec<Ex> = self.kernel.rows.iter().chain(&stage.outs).copied().collect();
        let tiles = match place {
            Tokens::Rows(_) => None,
            Tokens::Tiles(t, _) => Some(t),
        };
        let inner =
            |r: &&Ex<'g>| [Some(across), Some(lanes), tiles, pair].contains(&Some(**r)) || more.contains(r);
        let (inner, rows): (Vec<Ex>, Vec<Ex>) = outs.iter().partition(inner);
        stages.push(Stage { outs: inner, store: substitute(&[stage.store], &loads)[0] });
        self.restage(rows, stages);
        Ok(())
    }
}
