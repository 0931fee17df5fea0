//! Rewriting: tables of directional rules and expressions in, the same values written better out.
//!
//! A [`Rule`] may only replace a node by one of equal value; `rules!` writes a table of them, one equation a line.
//! [`rewrite`] works below the tensor level: nodes with a shape, the memory operand of loads and stores, and ranges are
//! leaves to it, so a loop keeps its identity however its index is rewritten.

use crate::dtype::{Bits, DType, Scalar};
use crate::graph::{Ex, Graph, Id, List, Node, Op};
use crate::hash::IdMap;
use crate::rng::Rng;
use crate::scalar::{Binary, Unary};
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::rc::Rc;

#[derive(Clone, Copy)]
pub struct Rule {
    pub name: &'static str,
    /// The only op that this rule rewrites.
    pub head: Op,
    /// The only element types of operands that it is about.
    pub types: &'static [Scalar],
    /// Gives the replacement of a node with that head and one of those types.
    pub apply: for<'g> fn(Ex<'g>) -> Option<Ex<'g>>,
    /// A random expression that the rule may rewrite.
    pub sample: for<'g> fn(&'g Graph, &mut Rng) -> Ex<'g>,
}

/// Writes a table of rules: `name: pattern if guard => replacement;`.
///
/// Patterns are `(Op arg..)`, `[n @ (Op arg..)]` with a name for that node, a name that binds any node, `_`, a literal,
/// or `(int a)` and `(flt a)`, which bind the value of a constant. A name stands once: compare two in the guard. The
/// replacement is an expression, a number
/// (a constant of the rewritten node's type) or an `Option` of an expression. The table is `for` operands of the listed
/// element types, vectors included; a `Where` counts as what it selects.
macro_rules! rules {
    ($(#[$doc:meta])* $vis:vis $table:ident for $types:ident:
     $($name:ident: $lhs:tt $(if $guard:expr)? => $rhs:expr;)*) => {
        $(#[$doc])*
        $vis const $table: &[$crate::rewrite::Rule] = &[$($crate::rewrite::Rule {
            name: stringify!($name),
            head: $crate::rewrite::rules!(@head $lhs),
            types: $types,
            apply: |n| {
                $crate::rewrite::rules!(@match n, $lhs, {
                    $(if !$guard { return None; })?
                    return $crate::rewrite::Replacement::over($rhs, n);
                });
                None
            },
            sample: |g, rng| {
                let t = $crate::rules::sample::dtype($types, rng);
                $crate::rewrite::rules!(@sample g, rng, t, t, $lhs)
            },
        }),*];
    };

    (@head [$v:ident @ $p:tt]) => { $crate::rewrite::rules!(@head $p) };
    (@head (Cast $a:tt)) => { $crate::graph::Op::Cast };
    (@head ($op:ident $a:tt)) => { $crate::graph::Op::Unary($crate::scalar::Unary::$op) };
    (@head ($op:ident $a:tt $b:tt)) => { $crate::graph::Op::Binary($crate::scalar::Binary::$op) };
    (@head ($op:ident $a:tt $b:tt $c:tt)) => { $crate::graph::Op::$op };

    // Runs the block with the names bound if the node matches.
    (@match $e:expr, _, $then:block) => { $then };
    (@match $e:expr, $v:ident, $then:block) => {{ let $v = $e; $then }};
    (@match $e:expr, $n:literal, $then:block) => { if $crate::rewrite::Literal::is($n, $e) $then };
    (@match $e:expr, (int $v:ident), $then:block) => { if let Some($v) = $e.as_int() $then };
    (@match $e:expr, (flt $v:ident), $then:block) => { if let Some($v) = $crate::rewrite::as_float($e) $then };
    (@match $e:expr, [$v:ident @ $p:tt], $then:block) => {{
        let $v = $e;
        $crate::rewrite::rules!(@match $v, $p, $then)
    }};
    (@match $e:expr, $p:tt, $then:block) => {{
        let e = $e;
        if e.op() == $crate::rewrite::rules!(@head $p) { $crate::rewrite::rules!(@args e, $p, $then) }
    }};
    (@args $e:expr, ($op:ident $a:tt), $then:block) => { $crate::rewrite::rules!(@match $e.arg(0), $a, $then) };
    (@args $e:expr, ($op:ident $a:tt $b:tt), $then:block) => {
        $crate::rewrite::rules!(@match $e.arg(0), $a, { $crate::rewrite::rules!(@match $e.arg(1), $b, $then) })
    };
    (@args $e:expr, ($op:ident $a:tt $b:tt $c:tt), $then:block) => {
        if $e.args().len() == 3 {
            $crate::rewrite::rules!(@match $e.arg(0), $a, {
                $crate::rewrite::rules!(@match $e.arg(1), $b, { $crate::rewrite::rules!(@match $e.arg(2), $c, $then) })
            })
        }
    };

    // A random instance of a pattern with result type `$t`; comparisons are of type `$of`.
    (@sample $g:expr, $rng:expr, $of:expr, $t:expr, $n:literal) => {
        $crate::rewrite::Literal::constant($n, $g, $t)
    };
    (@sample $g:expr, $rng:expr, $of:expr, $t:expr, (int $v:ident)) => {
        $crate::rules::sample::constant($g, $rng, $t)
    };
    (@sample $g:expr, $rng:expr, $of:expr, $t:expr, (flt $v:ident)) => {
        $crate::rules::sample::constant($g, $rng, $t)
    };
    (@sample $g:expr, $rng:expr, $of:expr, $t:expr, [$v:ident @ $p:tt]) => {
        $crate::rewrite::rules!(@sample $g, $rng, $of, $t, $p)
    };
    (@sample $g:expr, $rng:expr, $of:expr, $t:expr, (Cast $a:tt)) => {{
        let from = $crate::rules::sample::cast_from($t, $rng);
        let a = $crate::rewrite::rules!(@sample $g, $rng, from, from, $a);
        $g.make($crate::graph::Op::Cast, $t, &[a])
    }};
    (@sample $g:expr, $rng:expr, $of:expr, $t:expr, ($op:ident $a:tt)) => {{
        let a = $crate::rewrite::rules!(@sample $g, $rng, $of, $t, $a);
        a.unary($crate::scalar::Unary::$op)
    }};
    (@sample $g:expr, $rng:expr, $of:expr, $t:expr, ($op:ident $a:tt $b:tt)) => {{
        let op = $crate::scalar::Binary::$op;
        let t = if op.is_compare() { $crate::rules::sample::compared(op, $of, $rng) } else { $t };
        let a = $crate::rewrite::rules!(@sample $g, $rng, t, t, $a);
        let b = $crate::rewrite::rules!(@sample $g, $rng, t, t, $b);
        a.binary(op, b)
    }};
    (@sample $g:expr, $rng:expr, $of:expr, $t:expr, (Where $c:tt $a:tt $b:tt)) => {{
        let cond = $crate::dtype::Scalar::Bool.vec($t.lanes);
        let c = $crate::rewrite::rules!(@sample $g, $rng, $of, cond, $c);
        let a = $crate::rewrite::rules!(@sample $g, $rng, $of, $t, $a);
        let b = $crate::rewrite::rules!(@sample $g, $rng, $of, $t, $b);
        c.select(a, b)
    }};
    (@sample $g:expr, $rng:expr, $of:expr, $t:expr, (Load $m:tt $i:tt $c:tt)) => {{
        let memory = $crate::rules::sample::memory($g, $t);
        let index = $crate::rules::sample::index($g, $rng, 1);
        let gate = $crate::rewrite::rules!(@sample $g, $rng, $of, $crate::dtype::DType::BOOL, $c);
        $g.make($crate::graph::Op::Load, $t, &[memory, index, gate])
    }};
    (@sample $g:expr, $rng:expr, $of:expr, $t:expr, $leaf:tt) => { $crate::rules::sample::leaf($g, $rng, $t) };
}
pub(crate) use rules;

/// The element type that decides which rules are about a node.
pub fn operand_type(n: Ex) -> Scalar {
    match n.op() {
        Op::Where | Op::Load => n.dtype().scalar,
        _ => n.arg(0).dtype().scalar,
    }
}

pub fn as_float(e: Ex) -> Option<f32> {
    e.as_bits().filter(|_| e.dtype().is_float()).map(|v| v.as_float())
}

/// What may stand as a number in a pattern.
pub trait Literal {
    fn is(self, e: Ex) -> bool;
    fn constant(self, g: &Graph, t: DType) -> Ex<'_>;
}
impl Literal for i64 {
    fn is(self, e: Ex) -> bool {
        e.as_int() == Some(self)
    }
    fn constant(self, g: &Graph, t: DType) -> Ex<'_> {
        g.constant(t, Bits::int(t.scalar.wrap(self)))
    }
}
impl Literal for f32 {
    /// Bit for bit: 0.0 is not -0.0.
    fn is(self, e: Ex) -> bool {
        as_float(e).is_some_and(|v| v.to_bits() == self.to_bits())
    }
    fn constant(self, g: &Graph, t: DType) -> Ex<'_> {
        g.constant(t, Bits::float(self))
    }
}

/// What may stand on the right side of a rule.
pub trait Replacement<'g> {
    fn over(self, n: Ex<'g>) -> Option<Ex<'g>>;
}
impl<'g> Replacement<'g> for Ex<'g> {
    fn over(self, _: Ex<'g>) -> Option<Ex<'g>> {
        Some(self)
    }
}
impl<'g> Replacement<'g> for Option<Ex<'g>> {
    fn over(self, _: Ex<'g>) -> Option<Ex<'g>> {
        self
    }
}
impl<'g> Replacement<'g> for i64 {
    fn over(self, n: Ex<'g>) -> Option<Ex<'g>> {
        Some(n.like(self))
    }
}

/// How many leading arguments only name something and are not expressions.
fn named(n: &Node) -> usize {
    match n.op {
        Op::Range(..) => usize::MAX,
        _ if n.shape != List::EMPTY => usize::MAX,
        Op::Load | Op::Store | Op::LoadLanes | Op::TileDot(_) => 1,
        Op::TileProduct => 3,
        _ => 0,
    }
}

/// The rules of some tables by head and type.
pub struct Heads<'r>(Vec<Vec<&'r Rule>>);

impl<'r> Heads<'r> {
    const WHERE: usize = Unary::ALL.len() + Binary::ALL.len();
    const COUNT: usize = Self::WHERE + 3;

    fn head(op: Op) -> Option<usize> {
        Some(match op {
            Op::Unary(op) => op as usize,
            Op::Binary(op) => Unary::ALL.len() + op as usize,
            Op::Where => Self::WHERE,
            Op::Cast => Self::WHERE + 1,
            Op::Load => Self::WHERE + 2,
            _ => return None,
        })
    }

    fn slot(head: usize, s: Scalar) -> usize {
        head * Scalar::ALL.len() + s as usize
    }

    pub fn new(tables: &[&'r [Rule]]) -> Heads<'r> {
        let mut slots = vec![vec![]; Heads::slot(Heads::COUNT, Scalar::Bool)];
        for rule in tables.iter().flat_map(|t| t.iter()) {
            let head = Heads::head(rule.head).expect("a head that rules can have");
            rule.types.iter().for_each(|&s| slots[Heads::slot(head, s)].push(rule));
        }
        Heads(slots)
    }

    /// What the first rule that fires makes of a node.
    fn apply<'g>(&self, e: Ex<'g>) -> Option<(&'r Rule, Ex<'g>)> {
        let rules = &self.0[Heads::slot(Heads::head(e.op())?, operand_type(e))];
        rules.iter().find_map(|r| (r.apply)(e).filter(|&new| new != e).map(|new| (*r, new)))
    }

    /// Rewrites bottom-up until no rule fires anywhere.
    pub fn rewrite<'g>(&self, roots: &[Ex<'g>]) -> Vec<Ex<'g>> {
        // A node that is its own image is finished: no rule fires on it or below.
        let mut done: IdMap<Ex<'g>> = IdMap::default();
        let mut fuel = FUEL;
        // What is to be rewritten, on top of what waits for it: a node, and what it became if it did.
        let mut stack: Vec<(Ex<'g>, Option<Ex<'g>>)> = vec![];
        for &root in roots {
            stack.push((root, None));
            while let Some(&(e, next)) = stack.last() {
                if done.contains_key(&e.id) {
                    stack.pop();
                    continue;
                }
                if let Some(image) = next.map(|next| done[&next.id]) {
                    done.insert(e.id, image);
                    continue;
                }
                let node = e.node();
                let (ids, named) = (e.g.items(node.args), named(&node));
                let (here, mut changed) = (stack.len(), false);
                for id in ids.iter().skip(named) {
                    match done.get(id) {
                        Some(image) => changed |= image.id != *id,
                        None => stack.push((e.g.ex(*id), None)),
                    }
                }
                if stack.len() > here {
                    continue;
                }
                let next = if changed {
                    let mut args = e.args();
                    args.iter_mut().skip(named).for_each(|a| *a = done[&a.id]);
                    Some(e.with_args(&args))
                } else {
                    self.apply(e).map(|(rule, new)| {
                        fuel = fuel.checked_sub(1).unwrap_or_else(|| panic!("{} never ends", rule.name));
                        new
                    })
                };
                match next {
                    Some(next) => {
                        stack[here - 1].1 = Some(next);
                        stack.push((next, None));
                    }
                    None => {
                        done.insert(e.id, e);
                    }
                }
            }
        }
        roots.iter().map(|r| done[&r.id]).collect()
    }
}

/// More rewrites than any kernel needs: only rules that undo each other get here.
const FUEL: usize = 1 << 22;

/// Rewrites by some tables; earlier ones and lines go first.
pub fn rewrite<'g>(tables: &[&[Rule]], roots: &[Ex<'g>]) -> Vec<Ex<'g>> {
    Heads::new(tables).rewrite(roots)
}

/// Puts other nodes in the place of those in `map` and rebuilds what uses them; replacements are not searched again.
///
/// A range that a `Fold` consumes may become an expression of several: the fold then consumes all of them.
pub fn substitute<'g, S: BuildHasher>(roots: &[Ex<'g>], map: &HashMap<Id, Ex<'g>, S>) -> Vec<Ex<'g>> {
    let mut done: IdMap<Ex<'g>> = map.iter().map(|(&id, &e)| (id, e)).collect();
    let mut stack: Vec<Ex<'g>> = vec![];
    for &root in roots {
        stack.push(root);
        while let Some(&e) = stack.last() {
            if done.contains_key(&e.id) {
                stack.pop();
                continue;
            }
            let node = e.node();
            let here = stack.len();
            if node.shape == List::EMPTY {
                stack.extend(e.args().iter().filter(|a| !done.contains_key(&a.id)));
            }
            if stack.len() > here {
                continue;
            }
            let mut args = e.args();
            if node.shape == List::EMPTY {
                args.iter_mut().for_each(|a| *a = done[&a.id]);
            }
            if let Op::Fold(_, bodies) = node.op {
                let ranges = args.split_off(bodies as usize);
                for r in ranges.into_iter().flat_map(loops) {
                    if !args[bodies as usize..].contains(&r) {
                        args.push(r);
                    }
                }
            }
            done.insert(e.id, e.with_args(&args));
        }
    }
    roots.iter().map(|r| done[&r.id]).collect()
}

/// The ranges in an index expression, without those that only bound others.
fn loops(e: Ex) -> Vec<Ex> {
    match e.op() {
        Op::Range(..) => vec![e],
        _ => e.args().into_iter().flat_map(loops).collect(),
    }
}

/// Which ranges expressions depend on: those in them that no `Fold` within consumes. What bounds a range counts too.
#[derive(Default)]
pub struct Ranges {
    known: IdMap<Rc<[Id]>>,
}

impl Ranges {
    pub fn new() -> Ranges {
        Ranges::default()
    }

    /// Sorted by id.
    pub fn of(&mut self, e: Ex) -> Rc<[Id]> {
        let mut stack = vec![e];
        while let Some(&e) = stack.last() {
            if self.known.contains_key(&e.id) {
                stack.pop();
                continue;
            }
            let node = e.node();
            let args = if node.shape == List::EMPTY { e.args() } else { vec![] };
            let here = stack.len();
            stack.extend(args.iter().filter(|a| !self.known.contains_key(&a.id)));
            if stack.len() == here {
                let ranges = self.union(e, &args);
                self.known.insert(e.id, ranges);
            }
        }
        self.known[&e.id].clone()
    }

    /// Whether the value of `e` can change with one of `ranges`.
    pub fn depends(&mut self, e: Ex, ranges: &[Id]) -> bool {
        self.of(e).iter().any(|r| ranges.contains(r))
    }

    fn union(&self, e: Ex, args: &[Ex]) -> Rc<[Id]> {
        let mut sets = args.iter().map(|a| &self.known[&a.id]).filter(|s| !s.is_empty());
        let (first, rest) = (sets.next(), sets.collect::<Vec<_>>());
        if let Some(first) = first
            && !matches!(e.op(), Op::Range(..) | Op::Fold(..))
            && rest.iter().all(|s| *s == first)
        {
            return first.clone();
        }
        let mut all: Vec<Id> = first.into_iter().chain(rest).flat_map(|s| s.iter().copied()).collect();
        match e.op() {
            Op::Range(..) => all.push(e.id),
            Op::Fold(_, bodies) => all.retain(|id| args[bodies as usize..].iter().all(|r| r.id != *id)),
            _ => {}
        }
        all.sort();
        all.dedup();
        all.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Kind;
    use crate::scalar::Fold;

    const INDEX: &[Scalar] = &[Scalar::I64];
    rules! { DOUBLE for INDEX:
        drop_zero: (Add x 0) => x;
        twice:     (Add x y) if x == y => x * 2;
        shift:     (Mul x (int c)) if c == 2 => x << 1;
    }

    #[test]
    fn rules_apply_to_the_results_of_rules() {
        let g = Graph::new();
        let x = g.symbol("x", (0, 9));
        assert_eq!(rewrite(&[DOUBLE], &[(x + 0) + (x + 0), x - x]), [x << 1, x - x]);
    }

    #[test]
    fn deep_expressions_are_no_problem() {
        let g = Graph::new();
        let x = g.symbol("x", (0, 9));
        let deep = (0..200_000).fold(x, |e, _| e - 1 + 0);
        let [flat] = rewrite(&[DOUBLE], &[deep])[..] else { unreachable!() };
        assert_eq!(flat.topo().len(), 200_002);
        assert_eq!(substitute(&[flat], &HashMap::from([(x.id, x - 1)]))[0], flat - 1);
        assert_eq!(Ranges::new().of(flat).len(), 0);
    }

    #[test]
    fn folds_consume_their_ranges() {
        let g = Graph::new();
        let range = |n| g.new_range(n, Kind::Serial);
        let (i, j) = (range(g.int(8)), range(g.int(4)));
        let k = range(i + 1);
        let fold = |args: &[_]| g.make(Op::Fold(Fold::Sum, 1), DType::INDEX, args);
        let mut ranges = Ranges::new();
        assert_eq!(*ranges.of(i * 4 + j), [i.id, j.id]);
        assert_eq!(*ranges.of(fold(&[i * 4 + j, j])), [i.id]);
        assert_eq!(*ranges.of(fold(&[k, k])), [i.id], "the number of rounds depends on i");
        let (outer, inner) = (range(g.int(2)), range(g.int(4)));
        let split = substitute(&[fold(&[i * 4 + j, i])], &HashMap::from([(i.id, outer * 4 + inner)]))[0];
        assert_eq!(split.args()[1..], [outer, inner]);
        assert_eq!(*ranges.of(split), [j.id]);
    }
}
