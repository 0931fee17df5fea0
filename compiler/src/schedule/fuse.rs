//! Decides which of the tensors that are kept in memory are computed by one kernel.
//!
//! Kept tensors whose rows match become stages of one kernel as long as one row is little work: a kernel of several
//! stages has only its rows to spread over the machine. Rows that read the same memory, as those of a matrix product do,
//! count together, since a kernel of stages reads it again for each; a single row's product is one worker's only while it
//! is little. Nothing joins the kernel of a `contiguous` tensor that it reads, and on a CPU a sum of bf16 products joins
//! none: a tile unit takes it for many rows at a time. Results that read rows of the same input, as the planes of a file's
//! blocks do, share a kernel there.
//!
//! A GPU has processors enough for rows that are cut smaller: blocks of a product's rows, which the quantisation behind
//! it reads, become rows of both. And a launch costs it more than a little work: what is little, as the norm of one token
//! is, every block of its readers computes again for itself.

use super::apart::apart;
use super::item::{Item, LITTLE, extent};
use super::keep::keep;
use super::lower::{at_parts, flatten, reads};
use super::{Kernel, Program, Stage, length};
use crate::codegen::Caps;
use crate::graph::{Ex, Graph, Id, Kind, Op, topo};
use crate::rewrite::substitute;
use crate::rules::{simplify, simplify1};
use crate::shape::product;
use crate::tensor::Tensor;
use std::collections::{HashMap, HashSet};

/// Most bytes of local memory of one kernel; larger intermediates stay in global memory.
const LOCAL_BYTES: i64 = 24 << 10;

/// How much one row of a kernel of several stages may do.
#[derive(Clone, Copy)]
pub struct Grain {
    /// Element operations of a row.
    pub work: i64,
    /// The same where there are enough rows for all processors; none if rows of a product are never cut into blocks.
    pub blocks: Option<i64>,
}

impl Grain {
    /// A router of 64 experts over 2048 inputs has 2^17 operations.
    pub const CPU: Grain = Grain { work: 1 << 18, blocks: None };
    /// The many processors of a GPU are slow by themselves.
    pub const GPU: Grain = Grain { work: 1 << 16, blocks: Some(3 << 17) };

    pub fn of(caps: &Caps) -> Grain {
        if caps.lanes > 1 { Grain::GPU } else { Grain::CPU }
    }
}

/// Rows from which on a kernel of several stages has enough.
const ENOUGH: i64 = 32;

/// Element operations that one of a GPU's blocks does while the others wait, at most: 16 rows of a norm, but not 32.
const ONE: i64 = 1 << 15;

/// Element operations of a row's product that one worker does while the others wait, at most.
const ALONE: i64 = 1 << 15;

/// Element operations that are done again in every block rather than in a kernel of their own, and the blocks that a GPU
/// runs at a time.
const AGAIN: i64 = 1 << 15;
const AT_ONCE: i64 = 1 << 10;

/// Blocks that keep processors busy, two such kernels at a time, and the most rows of one. More blocks have less to do, but
/// all of them ask for what each computes again at the same time.
const BUSY: i64 = 64;
const BLOCK: i64 = 32;

/// Element operations of a row, at most, that a CPU does for several rows at a time: a block of activations that becomes
/// bytes is steps that wait for one another, and its scale one lane of sixteen.
const SHORT: i64 = 1 << 8;

/// Such rows that one worker has at least, and those that it may have where no [`ENOUGH`] are left for others.
const TOGETHER: i64 = 16;
const FEW: i64 = 64;

/// Products that a GPU's matrix unit does while its processors do one.
const MATRIX: i64 = 8;

pub fn program<'g>(g: &'g Graph, outputs: &[Tensor<'g>], grain: Grain) -> Program<'g> {
    let roots: Vec<Ex> = outputs.iter().map(|t| t.0).collect();
    let kept = keep(&roots, grain.blocks.is_some());
    let order: Vec<Ex> = topo(&roots).into_iter().filter(|e| kept.contains(&e.id)).collect();
    let along = |i: Item<'g>| if grain.blocks.is_some() { i.along_source() } else { i };
    let items = drop_unread(order.iter().map(|&t| along(Item::new(g, t, &kept))).collect(), &roots);
    let mut groups = group(&items, grain, &roots);
    if grain.blocks.is_some() {
        recompute(&items, &mut groups, &roots);
    }
    emit(g, &roots, &items, groups, grain.blocks.is_some())
}

/// Leaves out what nobody reads once the bodies are simplified.
fn drop_unread<'g>(mut items: Vec<Item<'g>>, roots: &[Ex<'g>]) -> Vec<Item<'g>> {
    let mut read: HashSet<Id> = roots.iter().map(|r| r.id).collect();
    for item in items.iter().rev() {
        if read.contains(&item.tensor.id) || item.place.is_some() {
            read.insert(item.tensor.id);
            read.extend(item.reads());
        }
    }
    items.retain(|item| read.contains(&item.tensor.id));
    items
}

#[derive(Clone)]
struct Group {
    members: Vec<usize>,
    rows: usize,
    /// What every block computes for itself, each with the members' rows that its first axes are.
    again: Vec<(usize, Vec<usize>)>,
    /// How many elements of the axis that is cut a block has.
    block: i64,
}

impl Group {
    fn of(member: usize, items: &[Item]) -> Group {
        Group { members: vec![member], rows: items[member].axes.len(), again: vec![], block: 1 }
    }

    /// The row that can be cut into blocks, where there are no other stages: the last.
    fn cut(&self, items: &[Item]) -> Option<usize> {
        let [only] = self.members[..] else { return None };
        items[only].axes.iter().rposition(|a| extent(*a) > 1)
    }
}

/// Which items share a kernel. Items come in dependence order.
fn group(items: &[Item], grain: Grain, roots: &[Ex]) -> Vec<Group> {
    let number: HashMap<Id, usize> = items.iter().enumerate().map(|(i, m)| (m.tensor.id, i)).collect();
    let needs = needs(items);
    let mut groups: Vec<Group> = vec![];
    let mut home: Vec<usize> = vec![];
    for (i, item) in items.iter().enumerate() {
        let at: Vec<_> = reads(&item.roots()).into_iter().map(at_parts).collect();
        let direct: HashSet<usize> = at.iter().filter_map(|(t, ..)| number.get(&t.id).copied()).collect();
        let joins = |g: usize| {
            let group = &groups[g];
            // A reader that the group's own result reaches by a way around it would have to run before itself.
            let around = needs[i].iter().any(|&d| home[d] != g && needs[d].iter().any(|n| home[*n] == g));
            let assigns = |m: &usize| items[*m].tensor.op() == Op::Assign;
            let ends = |d: &&usize| home[**d] == g && items[**d].tensor.op() == Op::Contiguous;
            if around
                || (grain.blocks.is_none() && item.halves())
                || overwrites(items, item)
                || group.members.iter().any(assigns)
                || direct.iter().find(ends).is_some()
            {
                return None;
            }
            let mut rows = group.rows;
            for (t, idx, _) in at.iter().filter(|(t, ..)| number.get(&t.id).is_some_and(|&d| home[d] == g)) {
                // Of an assignment the whole buffer's rows, so that a few rows of one are one block: blocks of their own
                // are quicker, but the launches that they go into were not (8 rows of a latent cache).
                let dims = if item.place.is_some() { item.tensor.dims() } else { item.dims.clone() };
                let same = |k: usize| idx[k] == item.axes[k] && t.dims()[k] == dims[k];
                rows = (0..rows.min(idx.len()).min(item.axes.len())).take_while(|&k| same(k)).count();
            }
            let all = || group.members.iter().map(|&m| &items[m]).chain([item]);
            let count = |rows: usize| item.axes[..rows].iter().map(|a| extent(*a)).product::<i64>();
            let enough = |rows: &usize| count(*rows) >= ENOUGH || all().any(|i| i.multiplies(*rows));
            let fits = |rows: usize| {
                let most = match grain.blocks {
                    Some(_) if all().any(|i| i.crowds(rows)) => return false,
                    Some(most) if enough(&rows) => most,
                    Some(_) if count(rows) == 1 => ONE,
                    _ => grain.work,
                };
                let together = |i: &Item| grain.blocks.is_none() && i.shares(rows);
                let work = |i: &Item| {
                    let quick = if grain.blocks.is_some() && i.multiplies(rows) { MATRIX } else { 1 };
                    i.work(if together(i) { 0 } else { rows }) / quick
                };
                let alone = all().any(|i| count(rows) == 1 && together(i) && i.work(0) > ALONE);
                !alone && all().map(work).sum::<i64>() <= most
            };
            // Rows that crowd each other may be one.
            let fewer = (1..rows).rev().filter(|_| grain.blocks.is_some());
            [rows].into_iter().chain(fewer.filter(enough)).find(|&r| fits(r)).map(|rows| (g, rows))
        };
        let mut candidates: Vec<usize> = direct.iter().map(|&d| home[d]).collect();
        candidates.sort_unstable();
        let like = |(g, group): (usize, &Group)| {
            let alike = |m: &usize| needs[*m].is_empty() && parallel(&items[*m], item, roots);
            (needs[i].is_empty() && group.members.iter().all(alike)).then_some((g, 1))
        };
        let beside = || groups.iter().enumerate().filter(|_| grain.blocks.is_none()).find_map(like);
        match candidates.into_iter().rev().find_map(joins).or_else(beside) {
            Some((g, rows)) => {
                groups[g].members.push(i);
                groups[g].rows = rows;
                home.push(g);
            }
            None => {
                groups.push(Group::of(i, items));
                home.push(groups.len() - 1);
            }
        }
    }
    if grain.blocks.is_none() {
        groups.iter_mut().for_each(|group| group.rows = longer(items, group));
    }
    sort_groups(groups, items, &number, &home)
}

/// How many of a group's first axes are left its rows where several short ones become one.
fn longer(items: &[Item], group: &Group) -> usize {
    let work: i64 = group.members.iter().map(|&m| items[m].work(group.rows)).sum();
    let (mut rows, mut inside) = (group.rows, 1);
    if group.members.len() > 1 && work <= SHORT {
        let extents: Vec<i64> = items[group.members[0]].axes[..rows].iter().map(|a| extent(*a)).collect();
        while rows > 0 && inside < TOGETHER {
            let more = inside * extents[rows - 1];
            if more > FEW && extents[..rows - 1].iter().product::<i64>() < ENOUGH {
                break;
            }
            (rows, inside) = (rows - 1, more);
        }
    }
    rows
}

/// Are these results of the program with rows of their own of the same tensor, many of them? Then it is read once for both.
fn parallel<'g>(a: &Item<'g>, b: &Item<'g>, roots: &[Ex]) -> bool {
    let rows = |i: &Item<'g>| i.axes.first().filter(|a| extent(**a) >= ENOUGH).map(|a| a.arg(0));
    let result = |i: &Item| roots.contains(&i.tensor) && i.place.is_none() && !i.halves() && !i.shares(1);
    let common = || a.reads().any(|t| b.reads().any(|u| t == u));
    rows(a).is_some() && rows(a) == rows(b) && result(a) && result(b) && common()
}

/// Gives every group that is little work to its readers, if all of them can have it. Where one reader comes after another
/// anyway, only what it comes after computes the group for itself, and the group runs beside that.
fn recompute(items: &[Item], groups: &mut Vec<Group>, roots: &[Ex]) {
    let needs = needs(items);
    let mut p = 0;
    while p < groups.len() {
        let mut hosts = hosts(items, groups, p, roots);
        let behind = |c: usize, k: usize| {
            groups[c].members.iter().any(|&m| groups[k].members.iter().any(|n| needs[m].contains(n)))
        };
        let ahead = |k: usize| hosts.iter().any(|h| h.group != k && behind(h.group, k));
        let first: Vec<usize> = hosts.iter().map(|h| h.group).filter(|k| ahead(*k)).collect();
        hosts.retain(|h| first.is_empty() || first.contains(&h.group));
        let members = groups[p].members.clone();
        let gone = first.is_empty() && !hosts.is_empty();
        for Host { group, rows, block } in hosts {
            let host = &mut groups[group];
            let mut needed: HashSet<Id> = host.members.iter().flat_map(|&m| items[m].reads()).collect();
            let mut again: Vec<_> = members.iter().rev().map(|&m| (m, rows.clone())).collect();
            again.retain(|(m, _)| {
                let wanted = needed.contains(&items[*m].tensor.id);
                needed.extend(items[*m].reads().filter(|_| wanted));
                wanted
            });
            host.again.extend(again.into_iter().rev());
            host.block = block;
        }
        if gone {
            groups.remove(p);
        } else {
            p += 1;
        }
    }
}

/// All that each item reads, directly or not.
fn needs(items: &[Item]) -> Vec<HashSet<usize>> {
    let number: HashMap<Id, usize> = items.iter().enumerate().map(|(i, m)| (m.tensor.id, i)).collect();
    let mut needs: Vec<HashSet<usize>> = vec![];
    for item in items {
        let direct: HashSet<usize> = item.reads().filter_map(|t| number.get(&t).copied()).collect();
        let all = direct.iter().flat_map(|&d| needs[d].iter().copied()).chain(direct.iter().copied());
        needs.push(all.collect());
    }
    needs
}

/// A group that computes another for itself: the rows that the two have in common, and how it is cut into blocks.
struct Host {
    group: usize,
    rows: Vec<usize>,
    block: i64,
}

/// The readers of a group, if all of them can compute it themselves.
fn hosts(items: &[Item], groups: &[Group], p: usize, roots: &[Ex]) -> Vec<Host> {
    let own: HashMap<Id, &Item> =
        groups[p].members.iter().map(|&m| (items[m].tensor.id, &items[m])).collect();
    let changed = |t: Ex| items.iter().any(|i| i.place.is_some_and(|p| at_parts(p).0 == t));
    // The rows in common are found by a tensor's own axes.
    let turned = |i: &Item| i.axes != i.index;
    let stays = |i: &&Item| {
        i.tensor.op() == Op::Assign
            || turned(i)
            || roots.contains(&i.tensor)
            || reads(&i.roots()).into_iter().any(|at| changed(at_parts(at).0))
    };
    if own.values().any(stays) || !groups[p].again.is_empty() {
        return vec![];
    }
    let mut hosts = vec![];
    for (c, host) in groups.iter().enumerate().filter(|(c, _)| *c != p) {
        let members = host.members.iter().map(|&m| &items[m]);
        if !members.clone().flat_map(Item::reads).any(|t| own.contains_key(&t)) {
            continue;
        }
        let first = &items[host.members[0]];
        let cut = host.cut(items);
        let rows = in_common(&own, groups[p].rows, members, |j| j < host.rows && Some(j) != cut);
        let count = first.axes[..host.rows].iter().map(|a| extent(*a)).fold(1, i64::saturating_mul);
        let even = |b: &i64| cut.is_some_and(|at| extent(first.axes[at]) % b == 0 && count / b >= BUSY);
        let block = std::iter::successors(Some(BLOCK), |b| Some(b / 2)).take(6).find(even).unwrap_or(1);
        let work = own.values().map(|i| i.work(rows.len())).fold(0, i64::saturating_add);
        let size = |i: &&Item| {
            let inner = i.axes[rows.len().min(i.axes.len())..].iter();
            inner.map(|a| extent(*a)).fold(i.tensor.dtype().bytes() as i64, i64::saturating_mul)
        };
        let bytes = own.values().map(size).fold(0, i64::saturating_add);
        let fixed =
            |i: &Item| i.axes.iter().all(|a| !matches!(a.op(), Op::Range(..)) || a.arg(0).as_int().is_some());
        if work > AGAIN
            || count / block > if work <= 4 * LITTLE { 4 * AT_ONCE } else { AT_ONCE }
            || bytes > LOCAL_BYTES / 2
            || !own.values().all(|i| fixed(i))
            || cut.is_some_and(|at| first.crowds(at))
        {
            return vec![];
        }
        hosts.push(Host { group: c, rows, block });
    }
    hosts
}

/// For the first axes of some items, at most so many, the rows of the readers that they are read with.
fn in_common<'a, 'g: 'a>(
    own: &HashMap<Id, &Item<'g>>,
    most: usize,
    readers: impl Iterator<Item = &'a Item<'g>>,
    row: impl Fn(usize) -> bool,
) -> Vec<usize> {
    let mut rows: Option<Vec<usize>> = None;
    for item in readers {
        for (t, idx, _) in
            reads(&item.roots()).into_iter().map(at_parts).filter(|(t, ..)| own.contains_key(&t.id))
        {
            let same = |k: usize, j: usize| idx[k] == item.axes[j] && t.dims()[k] == item.dims[j];
            let at = |k: usize| (0..item.axes.len()).find(|&j| row(j) && same(k, j));
            let found = (0..most.min(idx.len())).map_while(at);
            rows = Some(match rows {
                None => found.collect(),
                Some(before) => {
                    before.into_iter().zip(found).take_while(|(a, b)| a == b).map(|(a, _)| a).collect()
                }
            });
        }
    }
    rows.unwrap_or_default()
}

/// Does an assignment change what another item reads as it was?
fn overwrites(items: &[Item], item: &Item) -> bool {
    let Some(place) = item.place else { return false };
    let before = at_parts(place).0;
    items.iter().any(|i| reads(&i.roots()).into_iter().any(|a| at_parts(a).0 == before && Some(a) != i.place))
}

/// Groups in an order where each comes after what it reads, and after the readers of a buffer that it overwrites.
fn sort_groups(
    groups: Vec<Group>,
    items: &[Item],
    number: &HashMap<Id, usize>,
    home: &[usize],
) -> Vec<Group> {
    let mut before: Vec<HashSet<usize>> = vec![HashSet::new(); groups.len()];
    for (i, item) in items.iter().enumerate() {
        for (t, ..) in reads(&item.roots()).into_iter().map(at_parts) {
            if let Some(&d) = number.get(&t.id).filter(|&&d| home[d] != home[i]) {
                before[home[i]].insert(home[d]);
            }
        }
        let Some(place) = item.place else { continue };
        let overwritten = at_parts(place).0;
        for (j, other) in items.iter().enumerate().filter(|(j, _)| *j != i && home[*j] != home[i]) {
            if reads(&[other.body]).into_iter().any(|a| at_parts(a).0 == overwritten) {
                before[home[i]].insert(home[j]);
            }
        }
    }
    let mut slots: Vec<Option<Group>> = groups.into_iter().map(Some).collect();
    let mut done = HashSet::new();
    let mut out = vec![];
    while out.len() < slots.len() {
        let next = (0..slots.len()).find(|g| slots[*g].is_some() && before[*g].is_subset(&done));
        let next = next.expect("an assignment overwrites what a later result still reads");
        done.insert(next);
        out.extend(slots[next].take());
    }
    out
}

/// With `near`, stages find in local memory what they keep for other kernels too.
fn emit<'g>(
    g: &'g Graph,
    roots: &[Ex<'g>],
    items: &[Item<'g>],
    groups: Vec<Group>,
    near: bool,
) -> Program<'g> {
    let asked: HashSet<Id> = roots.iter().map(|r| r.id).collect();
    let mut home: HashMap<Id, usize> = HashMap::new();
    for (k, group) in groups.iter().enumerate() {
        home.extend(group.members.iter().map(|&m| (items[m].tensor.id, k)));
    }
    let mut outside: HashSet<Id> = asked.clone();
    for item in items {
        for (t, ..) in reads(&item.roots()).into_iter().map(at_parts) {
            if home.get(&t.id).is_some_and(|h| Some(h) != home.get(&item.tensor.id)) {
                outside.insert(t.id);
            }
        }
    }
    let mut memory: HashMap<Id, Ex> = HashMap::new();
    let mut temps = vec![];
    let mut kernels = vec![];
    for (k, group) in groups.iter().enumerate() {
        let own: Vec<usize> = group.again.iter().map(|(m, _)| *m).collect();
        // Where others find what is computed again here.
        let again: HashMap<Id, Option<Ex>> =
            own.iter().map(|&m| items[m].tensor.id).map(|t| (t, memory.get(&t).copied())).collect();
        let mut copied = copies(items, &group.members, &outside);
        copied.extend(copies(items, &own, &HashSet::new()));
        let mut group = group.clone();
        group.members.retain(|m| !copied.values().any(|c| c == m));
        group.again.retain(|(m, _)| !copied.values().any(|c| c == m));
        let first = &items[group.members[0]];
        let mut rows: Vec<Ex> = first.axes[..group.rows].to_vec();
        let mut cut = HashMap::new();
        let mut inner = vec![];
        if let Some(at) = group.cut(items).filter(|_| group.block > 1) {
            let last = rows[at];
            let within = g.new_range(last.like(group.block), Kind::Serial);
            let block = g.new_range(last.like(extent(last) / group.block), Kind::Serial);
            cut.insert(last.id, block * group.block + within);
            inner.push(within);
            rows[at] = block;
        }
        let every: Vec<usize> = (0..group.rows).collect();
        let all: Vec<(usize, &Vec<usize>)> = group
            .again
            .iter()
            .map(|(m, of)| (*m, of))
            .chain(group.members.iter().map(|&m| (m, &every)))
            .collect();
        let read: HashSet<Id> = all.iter().filter(|_| near).flat_map(|(m, _)| items[*m].reads()).collect();
        let mut local_bytes = 0;
        let mut locals: HashMap<Id, usize> = HashMap::new();
        // What is read here and elsewhere, and where it is found elsewhere.
        let mut given: Vec<(usize, Ex)> = vec![];
        for (n, &(m, of)) in all.iter().enumerate() {
            let t = items[m].tensor;
            let inner = product(g, &t.dims()[of.len().min(t.dims().len())..]);
            let bytes = inner.bounds().1.saturating_mul(t.dtype().bytes() as i64);
            let copy = copied.get(&t.id).map(|&c| items[c].tensor);
            let again = n < group.again.len();
            let mut mem = None;
            if t.op() == Op::Assign {
                mem = Some(assigned(t));
            } else if !again
                && ([Some(t), copy].into_iter().flatten().any(|t| outside.contains(&t.id))
                    || local_bytes + bytes > LOCAL_BYTES
                    || inner.as_int().is_none())
            {
                let own = asked.contains(&copy.unwrap_or(t).id);
                let name = format!("{}{k}_{n}", if own { "out" } else { "t" });
                let b = g.new_buffer(&name, t.dtype(), &t.dims());
                if !own {
                    temps.push(b);
                }
                let here = [t, copy.unwrap_or(t)].iter().any(|t| read.contains(&t.id));
                let fits = inner.as_int().is_some() && local_bytes + bytes <= LOCAL_BYTES;
                match here && fits {
                    true => given.push((n, b)),
                    false => mem = Some(b),
                }
            }
            let mem = mem.unwrap_or_else(|| {
                local_bytes += bytes;
                locals.extend([t, copy.unwrap_or(t)].map(|t| (t.id, of.len())));
                g.make(Op::Local(n as u32), t.dtype(), &[inner])
            });
            memory.insert(t.id, mem);
            memory.extend(copy.map(|c| (c.id, mem)));
        }
        let index = |t: Ex<'g>, idx: &[Ex<'g>]| match locals.get(&t.id) {
            Some(&rows) => flatten(g, &t.dims()[rows..], &idx[rows..]),
            None => flatten(g, &t.dims(), idx),
        };
        let mut stages = vec![];
        for &(m, of) in &all {
            let item = &items[m];
            let mut to_rows: HashMap<Id, Ex> =
                item.axes.iter().zip(of).map(|(a, &r)| (a.id, rows[r])).collect();
            to_rows.extend(&cut);
            let mut load = HashMap::new();
            for at in reads(&item.roots()) {
                let (t, idx, gate) = at_parts(at);
                let mem = *memory.entry(t.id).or_insert_with(|| buffer_of(t));
                let i = index(t, &idx);
                let gate = gate.filter(|_| i.bounds().0 < 0 || i.bounds().1 >= length(mem).bounds().0);
                let args: Vec<Ex> = [mem, i].into_iter().chain(gate).collect();
                load.insert(at.id, g.make(Op::Load, t.dtype(), &args));
            }
            // Indices of reads may hold reads themselves: replace until none is left.
            let resolve = |mut e: Ex<'g>| {
                while !reads(&[e]).is_empty() {
                    e = substitute(&[e], &load)[0];
                }
                e
            };
            let body = resolve(item.body);
            let to = match item.place {
                Some(p) => {
                    let (t, idx, _) = at_parts(p);
                    resolve(flatten(g, &t.dims(), &idx))
                }
                None => index(item.tensor, &item.index),
            };
            let store = g.make(Op::Store, item.tensor.dtype(), &[memory[&item.tensor.id], to, body]);
            let store = simplify(&substitute(&[store], &to_rows))[0];
            let own = item.axes[of.len().min(item.axes.len())..].iter().copied();
            let outs = own.filter(|a| matches!(a.op(), Op::Range(..)));
            let outs =
                if group.members.contains(&m) { outs.chain(inner.clone()).collect() } else { outs.collect() };
            stages.push(Stage { outs, store });
        }
        for (n, buffer) in given {
            let (t, rows_of) = (items[all[n].0].tensor, all[n].1);
            let axis = |(k, a): (usize, &Ex<'g>)| match rows_of.get(k) {
                Some(&r) => rows[r],
                None if matches!(a.op(), Op::Range(..)) => g.new_range(a.arg(0), Kind::Serial),
                None => *a,
            };
            let axes: Vec<Ex> = items[all[n].0].axes.iter().enumerate().map(axis).collect();
            let value = g.make(Op::Load, t.dtype(), &[memory[&t.id], index(t, &axes)]);
            let store = g.make(Op::Store, t.dtype(), &[buffer, flatten(g, &t.dims(), &axes), value]);
            let own = axes[rows_of.len().min(axes.len())..].iter().copied();
            let outs = own.filter(|a| matches!(a.op(), Op::Range(..))).collect();
            stages.push(Stage { outs, store: simplify1(store) });
            let copy = copied.get(&t.id).map(|&c| items[c].tensor.id);
            memory.extend([t.id].into_iter().chain(copy).map(|id| (id, buffer)));
        }
        memory.retain(|t, _| !again.contains_key(t));
        memory.extend(again.into_iter().filter_map(|(t, mem)| Some((t, mem?))));
        let rows = rows.into_iter().filter(|a| matches!(a.op(), Op::Range(_, Kind::Serial))).collect();
        let kernel = Kernel { g, name: name(k, &group, items), rows, stages };
        kernels.extend(if near { vec![kernel] } else { apart(kernel) });
    }
    let outputs = roots.iter().map(|r| memory.get(&r.id).copied().unwrap_or_else(|| buffer_of(*r))).collect();
    Program { kernels, outputs, temps }
}

/// Members that only copy another, by what they copy: both can lie in the same memory.
fn copies(items: &[Item], members: &[usize], outside: &HashSet<Id>) -> HashMap<Id, usize> {
    let mut found = HashMap::new();
    for &m in members {
        let Op::At(of) = items[m].body.op() else { continue };
        let (t, idx, gate) = at_parts(items[m].body);
        let own = members.iter().any(|&o| items[o].tensor == t && items[o].place.is_none());
        let (dims, g) = (items[m].tensor.dims(), t.g);
        let same = flatten(g, &t.dims(), &idx) == flatten(g, &dims, &items[m].index);
        let whole = same && product(g, &t.dims()) == product(g, &dims) && gate.is_none();
        if own && whole && items[m].place.is_none() && !outside.contains(&of) {
            found.entry(of).or_insert(m);
        }
    }
    // A copy of a copy stays.
    let copied: HashSet<Id> = found.values().map(|&m| items[m].tensor.id).collect();
    found.retain(|of, _| !copied.contains(of));
    found
}

/// The buffer that an assignment writes.
fn assigned(t: Ex) -> Ex {
    match t.op() {
        Op::Buffer(_) => t,
        _ => assigned(t.arg(0)),
    }
}

fn buffer_of(t: Ex) -> Ex {
    match t.op() {
        Op::Buffer(_) => t,
        Op::Assign => assigned(t),
        op => panic!("{op:?} was not kept"),
    }
}

/// A name that tells the shape: number, output axes, then reduced axes.
fn name(k: usize, group: &Group, items: &[Item]) -> String {
    let last = &items[*group.members.last().unwrap()];
    let dims = |axes: Vec<Ex>| axes.iter().map(|a| extent(*a).to_string()).collect::<Vec<_>>().join("x");
    let mut reduced = vec![];
    for e in topo(&last.roots()) {
        if let Op::Fold(_, n) = e.op() {
            reduced.extend_from_slice(&e.args()[n as usize..]);
        }
    }
    let mut seen = HashSet::new();
    reduced.retain(|r| seen.insert(r.id));
    let outs = dims(last.axes.iter().copied().filter(|a| matches!(a.op(), Op::Range(..))).collect());
    match reduced.is_empty() {
        true => format!("k{k}_{outs}"),
        false => format!("k{k}_{outs}_r{}", dims(reduced)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    #[test]
    fn rows_that_go_to_a_part_of_a_buffer_compute_their_own_norm() {
        let g = Graph::new();
        let (x, slots) = (g.input("x", DType::F32, [32, 512]), g.input("slots", DType::I32, [32]));
        let cache = g.input("cache", DType::F32, [1000, 512]);
        let normed = x * x.square().mean(-1).rsqrt();
        let program = program(&g, &[cache.gather(slots).assign(normed)], Grain::GPU);
        let [kernel] = &program.kernels[..] else { panic!("{} kernels", program.kernels.len()) };
        assert!(kernel.rows.iter().any(|r| extent(*r) == 32));
        assert!(kernel.stages[0].outs.is_empty(), "one norm a block, not 32");
    }

    #[test]
    fn a_product_makes_the_bytes_of_its_blocks_wherever_they_lie() {
        let g = Graph::new();
        let (x, w) = (g.input("x", DType::F32, [4, 1, 8, 512]), g.input("w", DType::F32, [4, 8, 32, 512]));
        let bytes = crate::ops::kept_blocks(crate::ops::linear(x, w), true);
        let program = program(&g, &[bytes.q, bytes.d, bytes.s32], Grain::GPU);
        // Those after it only show what it wrote as it was asked for.
        let kernel = &program.kernels[0];
        assert_eq!(kernel.rows.iter().map(|r| extent(*r)).collect::<Vec<_>>(), [4, 8]);
        let in_halves = |b: Ex| b.dtype() == DType::I8 && b.dims()[1].as_int() == Some(2);
        assert!(kernel.buffers().into_iter().any(|(b, written)| written && in_halves(b)));
    }

    #[test]
    fn tokens_that_share_an_expert_are_no_rows_of_stages() {
        let alone = |tokens: i64| {
            let g = Graph::new();
            let (x, w) =
                (g.input("x", DType::F32, [24, tokens, 128]), g.input("w", DType::F32, [8, 64, 128]));
            let y = crate::ops::linear(x, w.gather(g.input("chosen", DType::I32, [24])));
            let bytes = crate::ops::quantize_i8(y);
            let program = program(&g, &[bytes.q.contiguous(), bytes.d.contiguous()], Grain::CPU);
            program.kernels[0].stages.len() == 1
        };
        assert!(!alone(1), "the worker with a token's product makes bytes of it");
        assert!(alone(4));
    }

    #[test]
    fn blocks_that_become_bytes_are_several_to_a_row() {
        let rows = |dims: [i64; 3]| {
            let g = Graph::new();
            let bytes = crate::ops::kept_i8(g.input("x", DType::F32, dims), false);
            let program = program(&g, &[bytes.q, bytes.d, bytes.s32], Grain::CPU);
            assert!(program.kernels[0].stages.len() > 1, "a kernel of stages");
            program.kernels[0].rows.iter().map(|r| extent(*r)).collect::<Vec<_>>()
        };
        assert_eq!(rows([4, 8, 512]), [4, 8], "16 blocks each");
        assert_eq!(rows([8, 4, 128]), [8], "the 4 blocks of 4 heads");
        assert!(rows([1, 8, 64]).is_empty(), "so few that one worker does them");
        assert_eq!(rows([2, 1, 10240]), [2, 320], "many, and no rows besides for other workers");
        assert_eq!(rows([64, 1, 10240]), [64]);
    }

    #[test]
    fn planes_of_a_file_are_written_by_one_kernel() {
        let g = Graph::new();
        let q4 = crate::quant::Format::by_name("Q4_K").unwrap();
        let kernels = |rows: i64| {
            let raw = g.input("raw", DType::U8, [rows, 8, q4.bytes]);
            program(&g, &q4.load(raw, crate::quant::Layout::Interleaved16), Grain::CPU).kernels
        };
        let together = kernels(16 * ENOUGH);
        assert_eq!(together.iter().map(|k| k.stages.len()).collect::<Vec<_>>(), [5]);
        assert_eq!(
            together[0].rows.iter().map(|r| extent(*r)).collect::<Vec<_>>(),
            [ENOUGH],
            "a tile of 16 rows each"
        );
        assert_eq!(kernels(16).len(), 5, "one tile is spread over the workers");
        let x = g.input("x", DType::F32, [64, 64]);
        let y = g.input("y", DType::F32, [64, 64]);
        assert_eq!(program(&g, &[x + x, y * y], Grain::CPU).kernels.len(), 2, "they read nothing in common");
    }

    #[test]
    fn what_is_copied_into_another_order_is_not_computed_again_by_its_readers() {
        let g = Graph::new();
        let (x, w) = (g.input("x", DType::F32, [64, 32]), g.input("w", DType::F32, [32, 64, 16]));
        let copy = x.transpose(0, 1).contiguous();
        let sums = (w * copy.unsqueeze(-1)).sum(-1);
        let program = program(&g, &[sums], Grain::GPU);
        assert_eq!(program.kernels.len(), 2);
    }
}
