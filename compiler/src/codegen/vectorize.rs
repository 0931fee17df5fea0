//! Vector ranges become lanes.
//!
//! In: the stores of one stage. Out: the same stores with vector types and without `Vector` ranges. Every value varies
//! over some of the vector ranges; its lanes enumerate those in row-major order, outputs before reductions. Values that
//! meet are widened to the ranges of both. 64-bit integers are i64 as scalars and i32 in lanes, where they must fit.
//!
//! Bytes whose neighbours in the lanes are four apart in memory, as those of interleaved rows are, are held as whole
//! quads: the lanes' four bytes side by side. What is done to one of the four is then the same work for all, and a dot
//! product with a one picks it where it becomes a wider number.

use super::Caps;
use crate::dtype::{Bits, DType, Scalar};
use crate::graph::{Ex, Graph, Id, Kind, Op, topo};
use crate::kernel::{Illegal, byte_factors};
use crate::rewrite::substitute;
use crate::rules::{simplify1, sum::affine};
use crate::scalar::{Binary, Fold};
use crate::schedule::length;
use std::collections::HashMap;

macro_rules! refuse { ($($t:tt)*) => { return Err(Illegal(format!($($t)*))) } }

pub fn vectorize<'g>(stores: &[Ex<'g>], caps: &Caps) -> Result<Vec<Ex<'g>>, Illegal> {
    let all = topo(stores);
    let mut reduced: Vec<Ex> = vec![];
    for e in &all {
        if let Op::Fold(_, n) = e.op() {
            reduced.extend(&e.args()[n as usize..]);
        }
    }
    let mut ranges: Vec<Ex> =
        all.into_iter().filter(|e| matches!(e.op(), Op::Range(_, Kind::Vector))).collect();
    if ranges.is_empty() {
        return Ok(stores.to_vec());
    }
    ranges.sort_by_key(|r| (reduced.contains(r), r.id));
    let written = stores.iter().map(|s| s.arg(0)).collect();
    let mut v =
        Vectors { g: stores[0].g, ranges, caps, written, memo: HashMap::new(), quads: HashMap::new() };
    let mut out = vec![];
    let mut rest = stores;
    while let [s, more @ ..] = rest {
        rest = more;
        match more.split_first() {
            Some((next, after)) if v.pair(*s, *next, &mut out)? => rest = after,
            _ => v.store(*s, &mut out)?,
        }
    }
    // The factors of a dot product were widened on the way to it; only what is left must fit a register.
    let wide = |e: &Ex| e.dtype().lanes > 1 && e.dtype().bytes() > caps.vector_bytes as usize;
    match topo(&out).into_iter().find(wide).filter(|_| caps.lanes == 1) {
        Some(e) => refuse!("a vector of {} is too wide", e.dtype()),
        None => Ok(out),
    }
}

/// Which vector ranges a value varies over: bit i for `ranges[i]`.
type Mask = u32;

struct Vectors<'g, 'a> {
    g: &'g Graph,
    ranges: Vec<Ex<'g>>,
    caps: &'a Caps,
    written: Vec<Ex<'g>>,
    /// What became of a node. An index that does not fit lanes is no failure unless it is needed there.
    memo: HashMap<Id, Result<(Ex<'g>, Mask), Illegal>>,
    /// The whole quads behind nodes whose value is one byte of each.
    quads: HashMap<Id, Quads<'g>>,
}

/// Four bytes of each lane, side by side, of which a node is the one at this place.
#[derive(Clone, Copy)]
struct Quads<'g> {
    all: Ex<'g>,
    at: i64,
    lanes: Mask,
}

impl<'g> Vectors<'g, '_> {
    fn size(&self, i: usize) -> i64 {
        self.ranges[i].arg(0).as_int().expect("vector ranges are constant")
    }

    fn members(&self, m: Mask) -> impl DoubleEndedIterator<Item = usize> + use<> {
        (0..self.ranges.len()).filter(move |i| m >> i & 1 == 1)
    }

    fn lanes(&self, m: Mask) -> i64 {
        self.members(m).map(|i| self.size(i)).product()
    }

    fn typed(&self, t: DType, m: Mask) -> DType {
        t.with_lanes(self.lanes(m) as u16)
    }

    /// The value over more ranges.
    fn lift(&self, (e, from): (Ex<'g>, Mask), to: Mask) -> Result<Ex<'g>, Illegal> {
        if from == to {
            return Ok(e);
        }
        // Index scalars become i32 when they enter lanes.
        let e = if from == 0 && e.dtype() == DType::INDEX { narrow(e)? } else { e };
        if let Some(v) = e.as_bits() {
            return Ok(self.g.constant(self.typed(e.dtype(), to), v));
        }
        if from == 0 {
            let spread = |e: Ex<'g>| self.g.make(Op::Spread, self.typed(e.dtype(), to), &[e]);
            // On a CPU a load repeats itself to all lanes for nothing, a product of one does not.
            let scalar = self.caps.lanes == 1 && e.dtype() == DType::F32;
            let product = scalar && e.op() == Op::Binary(Binary::Mul) && e.arg(0).op() == Op::Load;
            return Ok(match e.args().get(1).and_then(|c| c.as_bits()).filter(|_| product) {
                Some(c) => spread(e.arg(0)) * self.g.constant(self.typed(e.dtype(), to), c),
                None => spread(e),
            });
        }
        let missing = to & !from;
        let (mut e, mut have) = (e, from);
        for i in self.members(missing).rev() {
            let lowest = have.trailing_zeros() as usize;
            let highest = 31 - have.leading_zeros() as usize;
            have |= 1 << i;
            let op = if i < lowest {
                Op::Repeat
            } else if i > highest {
                Op::Spread
            } else {
                refuse!("a vector range between two others")
            };
            e = self.g.make(op, self.typed(e.dtype(), have), &[e]);
        }
        Ok(e)
    }

    fn value(&mut self, e: Ex<'g>) -> Result<(Ex<'g>, Mask), Illegal> {
        // Arguments first, so that the recursion below never goes deep.
        for n in topo(&[e]) {
            if !self.memo.contains_key(&n.id) {
                let v = self.node(n);
                self.memo.insert(n.id, v);
            }
        }
        self.memo[&e.id].clone()
    }

    fn node(&mut self, e: Ex<'g>) -> Result<(Ex<'g>, Mask), Illegal> {
        let (g, n) = (self.g, e.node());
        if n.op == Op::Load {
            return self.load(e);
        }
        if let Op::Fold(fold, k) = n.op
            && let Some(folded) = self.lane_by_lane(e, fold, k as usize)?
        {
            return Ok(folded);
        }
        let args = e.args().iter().map(|a| self.memo[&a.id].clone()).collect::<Result<Vec<_>, _>>()?;
        let union = args.iter().fold(0, |m, a| m | a.1);
        if let Some(value) = self.quad(e, &args) {
            return Ok(value);
        }
        match n.op {
            Op::Range(_, Kind::Vector) => {
                let m = 1 << self.ranges.iter().position(|r| *r == e).expect("collected before");
                Ok((g.make(Op::Lanes, self.typed(DType::I32, m), &[]), m))
            }
            Op::Fold(fold, k) => self.fold(e, fold, k as usize, &args),
            Op::TileDot(_) => self.tile_dot(e, &args),
            Op::TileRow => {
                let m = args[0].1;
                Ok((g.make(Op::TileRow, self.typed(n.dtype, m), &[args[0].0, args[1].0]), m))
            }
            _ if union == 0 => {
                let new: Vec<_> = args.iter().map(|a| a.0).collect();
                Ok((e.with_args(&new), 0))
            }
            Op::Unary(_) | Op::Binary(_) | Op::Where | Op::Cast | Op::Bitcast | Op::Lookup(_) | Op::Fma => {
                let new = args.iter().map(|&a| self.lift(a, union)).collect::<Result<Vec<_>, _>>()?;
                let t = if n.dtype == DType::INDEX { fits_lanes(e)? } else { n.dtype };
                if n.op == Op::Cast && new[0].dtype().scalar == t.scalar {
                    return Ok((new[0], union));
                }
                if let (Op::Binary(Binary::Add), [Op::Dot4, Op::Const(_)]) =
                    (n.op, &new.iter().map(|x| x.op()).collect::<Vec<_>>()[..])
                    && new[0].arg(0).as_int() == Some(0)
                {
                    return Ok((new[0].with_args(&[new[1], new[0].arg(1), new[0].arg(2)]), union));
                }
                Ok((g.make(n.op, self.typed(t, union), &new), union))
            }
            op => refuse!("{op:?} cannot be vectorised"),
        }
    }

    /// Index at lane 0 and the ranges it walks, if it walks them through consecutive elements.
    fn consecutive(&self, index: Ex<'g>) -> Option<(Ex<'g>, Mask)> {
        let (base, strides) = affine(index, &self.ranges)?;
        let (mut m, mut next) = (0, 1);
        for i in (0..self.ranges.len()).rev().filter(|&i| strides[i] != 0) {
            if strides[i] != next {
                return None;
            }
            next *= self.size(i);
            m |= 1 << i;
        }
        Some((base, m))
    }

    /// A byte of each lane, where lanes are four bytes apart: out of whole quads.
    fn load_quads(&mut self, e: Ex<'g>) -> Option<(Ex<'g>, Mask)> {
        let (base, strides) = affine(e.arg(1), &self.ranges)?;
        let i = only(&strides)?;
        let at = simplify1(base % 4).as_int()?;
        let wide = 4 * self.size(i);
        let fits = wide <= self.caps.vector_bytes as i64 && e.dtype() == DType::U8 && self.caps.dot4;
        // What else is read must be there, and nobody may be writing it.
        let whole =
            length(e.arg(0)).as_int().is_some_and(|n| n % 4 == 0) && !self.written.contains(&e.arg(0));
        if strides[i] != 4 || !fits || !whole || e.args().len() > 2 {
            return None;
        }
        let all = self.g.make(Op::Load, Scalar::U8.vec(wide as u16), &[e.arg(0), simplify1(base - at)]);
        Some(self.own_byte(e, Quads { all, at, lanes: 1 << i }))
    }

    /// Remembers the quads of a node; its value is each lane's own byte of them.
    fn own_byte(&mut self, e: Ex<'g>, q: Quads<'g>) -> (Ex<'g>, Mask) {
        self.quads.insert(e.id, q);
        (self.pick(q).cast(e.dtype().scalar), q.lanes)
    }

    /// Each lane's own byte of quads of u8, as i32.
    fn pick(&self, q: Quads<'g>) -> Ex<'g> {
        let g = self.g;
        let one = |i: i64| g.constant(DType::I8, Bits::int((i == q.at) as i64));
        let ones = g.make(Op::Stack, Scalar::I8.vec(4), &[one(0), one(1), one(2), one(3)]);
        let ones = g.make(Op::Repeat, Scalar::I8.vec(q.all.dtype().lanes), &[ones]);
        let zero = g.constant(self.typed(DType::I32, q.lanes), Bits::int(0));
        g.make(Op::Dot4, zero.dtype(), &[zero, q.all, ones])
    }

    /// A node over bytes that are held as quads: quads again where bytes become bytes, a pick where they are widened.
    fn quad(&mut self, e: Ex<'g>, args: &[(Ex<'g>, Mask)]) -> Option<(Ex<'g>, Mask)> {
        let (g, n, old) = (self.g, e.node(), e.args());
        let q = old.iter().find_map(|a| self.quads.get(&a.id).copied())?;
        if n.op == Op::Cast && n.dtype.scalar != Scalar::Bool {
            return Some((self.pick(q).cast(n.dtype.scalar), q.lanes));
        }
        let wide = q.all.dtype().lanes;
        let arg = |(a, v): (&Ex<'g>, &(Ex<'g>, Mask))| match (self.quads.get(&a.id), v.0.as_bits()) {
            (Some(other), _) => (other.at == q.at && other.lanes == q.lanes).then_some(other.all),
            (None, Some(c)) => Some(g.constant(a.dtype().with_lanes(wide), c)),
            (None, None) => (v.1 == 0).then(|| g.make(Op::Spread, a.dtype().with_lanes(wide), &[v.0])),
        };
        let same = matches!(n.op, Op::Unary(_) | Op::Binary(_) | Op::Lookup(_)) && n.dtype == DType::U8;
        if !same || old.iter().any(|a| a.dtype() != DType::U8) {
            return None;
        }
        let new = old.iter().zip(args).map(arg).collect::<Option<Vec<_>>>()?;
        let all = g.make(n.op, Scalar::U8.vec(wide), &new);
        Some(self.own_byte(e, Quads { all, ..q }))
    }

    fn load(&mut self, e: Ex<'g>) -> Result<(Ex<'g>, Mask), Illegal> {
        let g = self.g;
        let gate = e.args().get(2).map(|c| self.memo[&c.id].clone()).transpose()?;
        let gates = gate.map_or(0, |g| g.1);
        if let Some((base, m)) = self.consecutive(e.arg(1)).filter(|(_, m)| gates & !m == 0) {
            let gate = gate.map(|x| if x.1 == 0 { Ok(x.0) } else { self.lift(x, m) }).transpose()?;
            let args: Vec<Ex> = [e.arg(0), base].into_iter().chain(gate).collect();
            if m != 0 && e.dtype() == DType::INDEX {
                fits_lanes(e)?;
            }
            return Ok((g.make(Op::Load, self.typed(e.dtype(), m), &args), m));
        }
        if let Some(quads) = self.load_quads(e) {
            return Ok(quads);
        }
        fits_lanes(e)?;
        let index = self.memo[&e.arg(1).id].clone()?;
        let m = index.1 | gates;
        let index = self.lift(index, m)?;
        let gate = gate.map(|x| self.lift(x, m)).transpose()?;
        let args: Vec<Ex> = [e.arg(0), index].into_iter().chain(gate).collect();
        Ok((g.make(Op::LoadLanes, self.typed(e.dtype(), m), &args), m))
    }

    fn fold(
        &mut self,
        e: Ex<'g>,
        fold: Fold,
        k: usize,
        args: &[(Ex<'g>, Mask)],
    ) -> Result<(Ex<'g>, Mask), Illegal> {
        let g = self.g;
        let over = &e.args()[k..];
        let reduced = self.own(over);
        let loops: Vec<Ex> = over.iter().copied().filter(|r| self.own(&[*r]) == 0).collect();
        let all = args[..k].iter().fold(reduced, |m, a| m | a.1);
        let rest = all & !reduced;
        if all != 0 && e.dtype() == DType::INDEX {
            refuse!("a fold of 64-bit numbers in lanes");
        }
        if e.arg(0).op() == Op::TileRow {
            // The tile product has summed over its inputs already.
            return Ok(args[0]);
        }
        if reduced == 0 {
            let bodies = args[..k].iter().map(|&b| self.lift(b, rest)).collect::<Result<Vec<_>, _>>()?;
            return Ok((self.folded(e, fold, bodies, loops, rest), rest));
        }
        if let Some(factors) = self.by_four(fold, &e.args()[..k], reduced, rest) {
            let zero = g.constant(self.typed(DType::I32, rest), Bits::int(0));
            let mut bodies = vec![];
            for (a, b) in factors {
                let factor = |x: Ex<'g>| self.lift(self.memo[&x.id].clone()?, all);
                let (a, b) = (factor(a)?, factor(b)?);
                bodies.push(g.make(Op::Dot4, self.typed(DType::I32, rest), &[zero, a, b]));
            }
            return Ok((self.folded(e, fold, bodies, loops, rest), rest));
        }
        if rest != 0 {
            refuse!("a vector range is reduced while another is not");
        }
        let bodies = args[..k].iter().map(|&b| self.lift(b, all)).collect::<Result<Vec<_>, _>>()?;
        let partial = self.folded(e, fold, bodies, loops, all);
        Ok((g.make(Op::LaneFold(fold), e.dtype(), &[partial]), 0))
    }

    /// Which of these are vector ranges.
    fn own(&self, ranges: &[Ex<'g>]) -> Mask {
        let at = |r: &Ex<'g>| self.ranges.iter().position(|x| x == r);
        ranges.iter().filter_map(at).fold(0, |m, i| m | 1 << i)
    }

    /// The factors of sums of four products of bytes, where the four lie side by side in the lanes.
    fn by_four(
        &self,
        fold: Fold,
        bodies: &[Ex<'g>],
        reduced: Mask,
        rest: Mask,
    ) -> Option<Vec<(Ex<'g>, Ex<'g>)>> {
        let fits = self.caps.dot4 && fold == Fold::Sum && self.lanes(reduced) == 4 && reduced > rest;
        fits.then(|| bodies.iter().map(|b| byte_factors(*b)).collect())?
    }

    /// A fold along some vector ranges whose result varies over others: every lane of the result is a vector that is
    /// folded, together with the other lanes' ones. Products by four are none: they leave the other lanes where they are.
    fn lane_by_lane(&mut self, e: Ex<'g>, fold: Fold, k: usize) -> Result<Option<(Ex<'g>, Mask)>, Illegal> {
        let args = e.args();
        let (bodies, over) = args.split_at(k);
        let reduced = self.own(over);
        let inside = topo(bodies);
        let over_inside = inside.iter().filter_map(|f| match f.op() {
            Op::Fold(_, n) => Some(f.args().split_off(n as usize)),
            _ => None,
        });
        let folded: Vec<Ex> = over_inside.flatten().collect();
        let rest = self.own(&inside) & !reduced & !self.own(&folded);
        let by_four = self.by_four(fold, bodies, reduced, rest).is_some();
        if reduced == 0 || rest == 0 || by_four || e.arg(0).op() == Op::TileRow {
            return Ok(None);
        }
        if self.typed(e.dtype(), rest).bytes() > self.caps.vector_bytes as usize {
            refuse!("more folds than a vector has lanes");
        }
        let lanes = (0..self.lanes(rest)).map(|lane| {
            let at = self.places(rest, lane);
            let own: Vec<Ex> = substitute(bodies, &at).into_iter().map(simplify1).collect();
            let whole = self.value(self.g.make(e.op(), e.dtype(), &[&own, over].concat()))?.0;
            match whole.op() {
                Op::LaneFold(_) => Ok(whole.arg(0)),
                op => refuse!("{op:?} instead of lanes to fold"),
            }
        });
        let lanes = lanes.collect::<Result<Vec<_>, Illegal>>()?;
        Ok(Some((self.g.make(Op::LaneFold(fold), self.typed(e.dtype(), rest), &lanes), rest)))
    }

    /// Where a lane of these ranges is.
    fn places(&self, m: Mask, lane: i64) -> HashMap<Id, Ex<'g>> {
        let mut rest = lane;
        let place = |i: usize| {
            let at = self.g.int(rest % self.size(i));
            rest /= self.size(i);
            (self.ranges[i].id, at)
        };
        self.members(m).rev().map(place).collect()
    }

    /// The bodies folded over what loops are left.
    fn folded(&self, e: Ex<'g>, fold: Fold, bodies: Vec<Ex<'g>>, loops: Vec<Ex<'g>>, m: Mask) -> Ex<'g> {
        let (g, t) = (self.g, self.typed(e.dtype(), m));
        if !loops.is_empty() {
            let n = bodies.len() as u32;
            return g.make(Op::Fold(fold, n), t, &[bodies, loops].concat());
        }
        let join = |acc: Ex<'g>, b: Ex<'g>| match b.op() {
            Op::Dot4 => g.make(Op::Dot4, t, &[acc, b.arg(1), b.arg(2)]),
            _ => g.make(Op::Binary(fold.binary()), t, &[acc, b]),
        };
        bodies.into_iter().reduce(join).expect("a fold has a body")
    }

    fn tile_dot(&mut self, e: Ex<'g>, args: &[(Ex<'g>, Mask)]) -> Result<(Ex<'g>, Mask), Illegal> {
        let all: Mask = args[2..].iter().fold(0, |m, a| m | a.1);
        let (inner, columns) = (1 << (31 - all.leading_zeros()), all & !(1 << (31 - all.leading_zeros())));
        let start = self.consecutive(e.arg(1)).filter(|(_, m)| *m == inner).map(|(base, _)| base);
        let Some(start) = start.filter(|_| self.lanes(inner) == 4 && self.lanes(columns) == 16) else {
            refuse!("a tile has 16 columns of 4 inputs")
        };
        let mut parts = vec![args[0].0, start];
        for &b in &args[2..] {
            parts.push(self.lift(b, all)?);
        }
        Ok((self.g.make(e.op(), self.typed(e.dtype(), columns), &parts), columns))
    }

    /// Two stores of rounded numbers, of upper halves or of bf16, side by side lane by lane, as one; says whether they were
    /// that.
    fn pair(&mut self, s: Ex<'g>, t: Ex<'g>, out: &mut Vec<Ex<'g>>) -> Result<bool, Illegal> {
        let half = |s: Ex<'g>| {
            let fits = s.op() == Op::Store && s.dtype() == DType::BF16 && s.args().len() == 3;
            let value = fits.then(|| s.arg(2))?;
            let value = match value.op() {
                Op::Cast if value.arg(0).dtype() == DType::F32 => value.arg(0),
                Op::Cast if value.arg(0).dtype() == DType::F16 => value.arg(0).cast(Scalar::F32),
                Op::Bitcast => upper_half(value.arg(0)).unwrap_or(value),
                _ => value,
            };
            let (base, strides) = affine(s.arg(1), &self.ranges)?;
            Some((value, base, strides))
        };
        let (Some((low, base, strides)), Some((high, next, others))) = (half(s), half(t)) else {
            return Ok(false);
        };
        let Some(i) = only(&strides) else { return Ok(false) };
        let whole = 4 * self.size(i) == self.caps.vector_bytes as i64;
        let apart = strides[i] == 2 && strides == others && next == simplify1(base + 1);
        let alike = s.arg(0) == t.arg(0) && low.dtype() == high.dtype();
        if !self.caps.tile || !whole || !apart || !alike {
            return Ok(false);
        }
        let (low, high) = (self.value(low)?, self.value(high)?);
        let [low, high] = [low, high].map(|v| self.lift(v, 1 << i));
        let both = self.g.make(Op::Pairs, Scalar::BF16.vec(2 * self.size(i) as u16), &[low?, high?]);
        out.push(self.g.make(Op::Store, s.dtype(), &[s.arg(0), base, both]));
        Ok(true)
    }

    /// How many of these lanes an index walks through consecutive elements before it goes on elsewhere.
    fn beside(&self, index: Ex<'g>, m: Mask) -> i64 {
        let Some((_, strides)) = affine(index, &self.ranges) else { return 1 };
        let mut n = 1;
        for i in self.members(m).rev() {
            if strides[i] != n {
                break;
            }
            n *= self.size(i);
        }
        n
    }

    fn store(&mut self, s: Ex<'g>, out: &mut Vec<Ex<'g>>) -> Result<(), Illegal> {
        let g = self.g;
        let args = s.args();
        let value = self.value(args[2])?;
        let consecutive = self.consecutive(args[1]);
        let index = match (self.value(args[1]), &consecutive) {
            (Ok(index), _) => index,
            (Err(_), Some((_, m))) => (args[1], *m),
            (Err(why), None) => return Err(why),
        };
        let gate = args.get(3).map(|&c| self.value(c)).transpose()?;
        let all = value.1 | index.1 | gate.map_or(0, |x| x.1);
        if all == 0 {
            let new: Vec<Ex> = [args[0], index.0, value.0].into_iter().chain(gate.map(|x| x.0)).collect();
            out.push(s.with_args(&new));
            return Ok(());
        }
        if s.dtype() == DType::INDEX {
            refuse!("64-bit numbers from lanes");
        }
        if let Some((base, m)) = consecutive.filter(|(_, m)| *m == all) {
            let value = self.lift(value, m)?;
            let gate = gate.map(|x| if x.1 == 0 { Ok(x.0) } else { self.lift(x, m) }).transpose()?;
            let new: Vec<Ex> = [args[0], base, value].into_iter().chain(gate).collect();
            out.push(g.make(Op::Store, s.dtype(), &new));
            return Ok(());
        }
        // Lane by lane, or as many as lie side by side.
        let value = self.lift(value, all)?;
        let gate = gate.map(|x| self.lift(x, all)).transpose()?;
        let beside = self.beside(args[1], all);
        for lane in (0..self.lanes(all)).step_by(beside as usize) {
            let index = simplify1(substitute(&[args[1]], &self.places(all, lane))[0]);
            if topo(&[index]).iter().any(|e| e.op() == Op::Load) && self.value(index)?.1 != 0 {
                refuse!("a scattered index is not worth a vector");
            }
            let pick = |v: Ex<'g>| match beside {
                1 => g.make(Op::Extract(lane as u16), v.dtype().with_lanes(1), &[v]),
                n => g.make(Op::Slice(lane as u16), v.dtype().with_lanes(n as u16), &[v]),
            };
            let new: Vec<Ex> = [args[0], index, pick(value)].into_iter().chain(gate.map(pick)).collect();
            out.push(g.make(Op::Store, s.dtype(), &new));
        }
        Ok(())
    }
}

/// The one range that is walked.
fn only(strides: &[i64]) -> Option<usize> {
    let mut walked = (0..strides.len()).filter(|&i| strides[i] != 0);
    walked.next().filter(|_| walked.next().is_none())
}

fn narrow(e: Ex) -> Result<Ex, Illegal> {
    fits_lanes(e)?;
    Ok(match e.as_int() {
        Some(v) => e.g.constant(DType::I32, Bits::int(v)),
        None => e.cast(Scalar::I32),
    })
}

/// The type of a number in lanes.
fn fits_lanes(e: Ex) -> Result<DType, Illegal> {
    if e.dtype().scalar != Scalar::I64 {
        return Ok(e.dtype());
    }
    let ((low, high), (least, most)) = (Scalar::I32.int_range(), e.bounds());
    if least < low || most > high {
        refuse!("a 64-bit number in lanes");
    }
    Ok(DType::I32)
}

/// The u32 of which `e` is the upper half.
fn upper_half(e: Ex) -> Option<Ex> {
    let shifted = Some(e).filter(|e| e.op() == Op::Cast && e.dtype() == DType::U16)?.arg(0);
    let whole = matches!(shifted.op(), Op::Binary(Binary::Shr)) && shifted.dtype() == DType::U32;
    (whole && shifted.arg(1).as_int() == Some(16)).then(|| shifted.arg(0))
}
