//! Finds data races: every access to a shared element in, the reason it races out.
//!
//! Two accesses race if different threads make them, one writes, and nothing orders them. Threads of one block are
//! ordered by a barrier, those of one group by one of groups; different grid indices are never ordered. Writes of equal
//! values do not race with each other.

/// Who is running: a thread of a group, and how many barriers and blocks have passed when its block and its barrier
/// interval began, and how many barriers of groups.
#[derive(Clone, Copy)]
pub struct Point {
    pub thread: u32,
    pub group: u32,
    pub block: u32,
    pub interval: u32,
    pub grouped: u32,
}

/// The accesses of one kind to one element, as far as later accesses can race with them.
#[derive(Clone, Copy)]
struct Seen {
    first: u32,
    /// The latest interval with an access; by `group` and, if `mixed`, by others.
    interval: u32,
    group: u32,
    mixed: bool,
    /// The latest of the group in it, by `thread` and, if `shared`, by others.
    grouped: u32,
    thread: u32,
    shared: bool,
}

#[derive(Clone, Copy, Default)]
struct Cell {
    written: Option<Seen>,
    read: Option<Seen>,
}

/// The history of every element of one memory.
pub struct Shadow(Vec<Cell>);

impl Shadow {
    pub fn new(elements: usize) -> Shadow {
        Shadow(vec![Cell::default(); elements])
    }
    pub fn clear(&mut self) {
        self.0.fill(Cell::default());
    }
    pub fn read(&mut self, element: usize, p: Point) -> Result<(), String> {
        let cell = &mut self.0[element];
        if let Some(who) = cell.written.and_then(|w| w.unordered(p)) {
            return Err(format!("thread {} reads what {who} wrote", p.thread));
        }
        note(&mut cell.read, p);
        Ok(())
    }
    /// `changes`: the element's bytes become others.
    pub fn write(&mut self, element: usize, p: Point, changes: bool) -> Result<(), String> {
        let cell = &mut self.0[element];
        if let Some(who) = cell.read.and_then(|r| r.unordered(p)) {
            return Err(format!("thread {} writes what {who} read", p.thread));
        }
        if let Some(who) = cell.written.and_then(|w| w.unordered(p)).filter(|_| changes) {
            return Err(format!("thread {} writes another value than {who}", p.thread));
        }
        note(&mut cell.written, p);
        Ok(())
    }
}

impl Seen {
    /// Names an access that nothing orders before `p`.
    fn unordered(self, p: Point) -> Option<String> {
        if self.first < p.block {
            return Some("another grid index".into());
        }
        let other = self.shared || self.thread != p.thread;
        let apart = self.mixed || self.group != p.group || self.grouped == p.grouped;
        (self.interval == p.interval && other && apart).then(|| match self.shared {
            true => "several threads".into(),
            false => format!("thread {}", self.thread),
        })
    }
}

fn note(seen: &mut Option<Seen>, p: Point) {
    let Point { thread, group, interval, grouped, .. } = p;
    let own = |first| Seen { first, interval, group, mixed: false, grouped, thread, shared: false };
    *seen = Some(match *seen {
        None => own(interval),
        Some(s) if s.interval != interval => own(s.first),
        Some(s) if s.group == group && !s.mixed && s.grouped != grouped => own(s.first),
        Some(s) => {
            let shared = s.shared || s.thread != thread;
            Seen { mixed: s.mixed || s.group != group, shared, ..s }
        }
    });
}
