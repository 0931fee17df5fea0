//! The worker threads that walk a step. In: launches whose grids are known. Out: every grid index run exactly once, each
//! launch after those it depends on.
//!
//! Every worker walks the same list and takes the same decisions, so a barrier between dependent launches is all the
//! synchronisation there is, and independent launches need none. Of steps that are independent as a whole each is one
//! worker's, who waits for nobody. The thread that calls [`Pool::run`] is worker 0. It
//! returns when all workers are back at the barrier: none of them holds a step beyond its end.

use super::code::Entry;
use crate::plan::{BETWEEN, Meetings};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// One launch, ready to be called.
pub struct Ready {
    pub entry: Entry,
    /// Where in `Step::words` its buffer addresses and symbol values are.
    pub args: usize,
    pub grid: u64,
    /// Whether some grid indices take much longer than others.
    pub uneven: bool,
    /// The latest earlier launch that must be over.
    pub after: Option<usize>,
}

pub struct Step<'a> {
    pub launches: &'a [Ready],
    pub words: &'a [u64],
    /// Worker w's scratch starts w·`stride` bytes from here.
    pub locals: *mut u8,
    pub stride: usize,
}

impl Step<'_> {
    /// Runs grid indices of a launch.
    unsafe fn call(&self, launch: &Ready, worker: usize, indices: Range<u64>) {
        let locals = self.locals.wrapping_add(worker * self.stride);
        let args = self.words[launch.args..].as_ptr();
        // SAFETY: the caller's promise.
        unsafe { (launch.entry)(args, locals, indices.start, indices.end) }
    }
}

/// What the workers do between two meetings of all.
enum Task<'a> {
    Together(&'a Step<'a>),
    /// With places for when each step began and each of its launches ended, in nanoseconds since `born`.
    Each(&'a [Step<'a>], Option<&'a [Vec<AtomicU64>]>),
}

pub struct Pool {
    shared: Arc<Shared>,
    /// Held while a step runs.
    turn: Mutex<()>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    barrier: Barrier,
    /// What to do after the next barrier; null: the workers end.
    task: AtomicPtr<Task<'static>>,
    /// Whether every launch stands alone between two barriers, so that it can be timed.
    apart: AtomicBool,
    /// Then: nanoseconds from `born` to the last meeting. Taken by the last to come, for who waits may wake late.
    met: AtomicU64,
    born: Instant,
    /// What is taken of each worker's share of a launch, for every launch since the last barrier.
    shares: Box<[Line<Share>]>,
}

/// How many of its parts are taken, in the low byte; above it the meeting after which: shares of launches before are
/// whole again without anyone writing to them.
#[derive(Default)]
struct Share(AtomicU64);

/// Parts of a worker's share at most: a few that are taken several at a time, or where they are uneven as many as can be
/// counted, each for itself. In half of the shares at once may lie all of an expert whom most tokens chose.
const PARTS: u64 = 16;
const UNEVEN_PARTS: u64 = 255;

impl Share {
    /// Half of what is left of so many parts, or one.
    fn take(&self, epoch: u64, parts: u64, single: bool) -> Option<Range<u64>> {
        let mut now = self.0.load(Relaxed);
        loop {
            let taken = if now >> 8 == epoch { now & 0xff } else { 0 };
            if taken == parts {
                return None;
            }
            let end = taken + if single { 1 } else { (parts - taken).div_ceil(2) };
            match self.0.compare_exchange_weak(now, epoch << 8 | end, Relaxed, Relaxed) {
                Ok(_) => return Some(taken..end),
                Err(other) => now = other,
            }
        }
    }
}

/// Keeps apart what different workers write (128 bytes because cache lines are fetched in pairs).
#[repr(align(128))]
#[derive(Default)]
struct Line<T>(T);

impl Pool {
    /// `workers` counts the calling thread. No thread is pinned to a core: a pinned worker gained nothing on a quiet
    /// machine, and on a busy one it sat behind another process' thread while a core was free.
    pub fn new(workers: usize) -> std::io::Result<Pool> {
        let mut threads = vec![];
        // A worker starts when it is sent the shared state: if one cannot be spawned, the others end with their channels.
        let mut starts = vec![];
        for worker in 1..workers {
            let (start, started) = mpsc::channel::<Arc<Shared>>();
            let body = move || {
                if let Ok(shared) = started.recv() {
                    shared.work(worker);
                }
            };
            threads.push(std::thread::Builder::new().name(format!("worker {worker}")).spawn(body)?);
            starts.push(start);
        }
        let shared = Arc::new(Shared {
            barrier: Barrier::new(workers),
            task: AtomicPtr::default(),
            apart: AtomicBool::default(),
            met: AtomicU64::default(),
            born: Instant::now(),
            shares: (0..BETWEEN * workers).map(|_| Line::default()).collect(),
        });
        for start in starts {
            // A worker waits for this message and nothing else.
            start.send(shared.clone()).expect("a worker ended before it started");
        }
        Ok(Pool { shared, turn: Mutex::default(), threads })
    }

    pub fn workers(&self) -> usize {
        self.threads.len() + 1
    }

    /// # Safety
    /// The launches' entries must keep to the ABI, and what they read and write must live. The scratch must have room
    /// for every worker.
    pub unsafe fn run(&self, step: &Step) {
        // SAFETY: the caller's promise.
        unsafe { self.start(&Task::Together(step), false, &mut || ()) }
    }

    /// Runs steps of which none depends on another, each by one worker.
    ///
    /// # Safety
    /// As for [`Pool::run`].
    pub unsafe fn run_each(&self, steps: &[Step]) {
        // SAFETY: the caller's promise.
        unsafe { self.start(&Task::Each(steps, None), false, &mut || ()) }
    }

    /// As [`Pool::run_each`], and says how long each step's launches took.
    ///
    /// # Safety
    /// As for [`Pool::run`].
    pub unsafe fn time_each(&self, steps: &[Step]) -> Vec<Vec<Duration>> {
        let places = |step: &Step| (0..=step.launches.len()).map(|_| AtomicU64::default()).collect();
        let marks: Vec<Vec<AtomicU64>> = steps.iter().map(places).collect();
        // SAFETY: the caller's promise.
        unsafe { self.start(&Task::Each(steps, Some(&marks)), false, &mut || ()) };
        let times = |of: &Vec<AtomicU64>| {
            of.windows(2).map(|m| Duration::from_nanos(m[1].load(Relaxed) - m[0].load(Relaxed))).collect()
        };
        marks.iter().map(times).collect()
    }

    /// Runs the launches one after the other and says how long each took.
    ///
    /// # Safety
    /// As for [`Pool::run`].
    pub unsafe fn time(&self, step: &Step) -> Vec<Duration> {
        let mut marks = Vec::with_capacity(step.launches.len() + 1);
        // SAFETY: the caller's promise.
        unsafe { self.start(&Task::Together(step), true, &mut || marks.push(self.shared.met.load(Relaxed))) };
        // Without launches there are still the marks of start and end.
        marks.windows(2).map(|m| Duration::from_nanos(m[1] - m[0])).take(step.launches.len()).collect()
    }

    /// Calls `passed` after each barrier: one at the start, one wherever the walk needs it, one at the end.
    unsafe fn start(&self, task: &Task, apart: bool, passed: &mut dyn FnMut()) {
        let _turn = lock(&self.turn);
        let shared = &*self.shared;
        shared.task.store(std::ptr::from_ref(task).cast_mut().cast(), Relaxed);
        shared.apart.store(apart, Relaxed);
        shared.meet(0, || ());
        // SAFETY: the caller's promise; this is worker 0 and no other.
        unsafe { shared.perform(task, 0, passed) };
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.task.store(std::ptr::null_mut(), Relaxed);
        self.shared.barrier.wait(0, || (), || ());
        for thread in self.threads.drain(..) {
            // A worker that panicked has said so already.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self, worker: usize) {
        loop {
            self.meet(worker, || ());
            // SAFETY: the task was stored before worker 0 came to the barrier just passed, and worker 0 keeps it until
            // the barrier at the end of `perform`.
            let Some(task) = (unsafe { self.task.load(Relaxed).as_ref() }) else { return };
            // SAFETY: promised to `Pool::run`.
            unsafe { self.perform(task, worker, &mut || ()) };
        }
    }

    /// One worker's part of a task, from behind the barrier that starts it to behind the one that ends it.
    unsafe fn perform(&self, task: &Task, worker: usize, passed: &mut dyn FnMut()) {
        match task {
            // SAFETY: the caller's promise.
            Task::Together(step) => unsafe { self.walk(step, worker, passed) },
            Task::Each(steps, marks) => {
                for (i, step) in steps.iter().enumerate().skip(worker).step_by(self.barrier.workers) {
                    let mark = |n: usize| {
                        let now = || self.born.elapsed().as_nanos() as u64;
                        marks.iter().for_each(|m| m[i][n].store(now(), Relaxed));
                    };
                    mark(0);
                    for (n, launch) in step.launches.iter().enumerate() {
                        // SAFETY: the caller's promise; nobody else runs this step.
                        unsafe { step.call(launch, worker, 0..launch.grid) };
                        mark(n + 1);
                    }
                }
                self.meet(worker, || ());
            }
        }
    }

    /// One worker's share of every launch of a step.
    unsafe fn walk(&self, step: &Step, worker: usize, passed: &mut dyn FnMut()) {
        let apart = self.apart.load(Relaxed);
        let mut meetings = Meetings::default();
        passed();
        for (i, launch) in step.launches.iter().enumerate() {
            let since = i - meetings.since(i)..i;
            if meetings.before(i, launch.grid, launch.after, apart) {
                // SAFETY: the caller's promise.
                self.meet(worker, || unsafe { self.help(step, since, worker) });
                passed();
            }
            // SAFETY: the caller's promise; the launches this one depends on are over.
            unsafe { self.share(step, i, meetings.since(i), worker, worker) };
        }
        let end = step.launches.len();
        // SAFETY: the caller's promise.
        self.meet(worker, || unsafe { self.help(step, end - meetings.since(end)..end, worker) });
        passed();
    }

    /// Waits for all workers; who waits for long goes to `help` once.
    fn meet(&self, worker: usize, help: impl FnOnce()) {
        self.barrier.wait(worker, help, || {
            if self.apart.load(Relaxed) {
                self.met.store(self.born.elapsed().as_nanos() as u64, Relaxed);
            }
        });
    }

    /// Takes from the other workers' shares of launches since the last meeting: a core that is slow or disturbed does not
    /// hold up the others.
    unsafe fn help(&self, step: &Step, launches: Range<usize>, worker: usize) {
        for i in launches.clone() {
            for owner in (0..self.barrier.workers).filter(|&w| w != worker) {
                if self.barrier.last(worker) {
                    return;
                }
                // SAFETY: the caller's promise; the launches are independent of each other.
                unsafe { self.share(step, i, i - launches.start, worker, owner) };
            }
        }
    }

    /// Runs what is left of a worker's share of launch `i`, the `since`th since the last meeting. Each has neighbouring
    /// grid indices: it streams through memory and finds in its cache what it wrote itself.
    unsafe fn share(&self, step: &Step, i: usize, since: usize, worker: usize, owner: usize) {
        let launch = &step.launches[i];
        // SAFETY: the caller's promise; each index is run once.
        let call = |lo, hi| unsafe { step.call(launch, worker, lo..hi) };
        if launch.grid <= 1 {
            // Launches of one index that follow each other are the first worker's alone.
            if launch.grid == 1 && worker == 0 && owner == 0 {
                call(0, 1);
            }
            return;
        }
        let workers = self.barrier.workers;
        let start = |owner: usize| launch.grid * owner as u64 / workers as u64;
        let (lo, len) = (start(owner), start(owner + 1) - start(owner));
        let parts = len.min(if launch.uneven { UNEVEN_PARTS } else { PARTS });
        let (epoch, share) = (self.barrier.epoch(worker), &self.shares[since * workers + owner].0);
        while let Some(part) = share.take(epoch, parts, launch.uneven) {
            call(lo + len * part.start / parts, lo + len * part.end / parts);
        }
    }
}

/// Where workers meet. Who waits long sleeps.
///
/// A few count themselves together, look at a line of their own while they wait, and the last of them counts the group: sixteen
/// on one line took 2.5 µs to meet.
struct Barrier {
    workers: usize,
    groups: Box<[Line<Group>]>,
    /// How often a group was whole, if there are several.
    whole: Line<AtomicU64>,
    /// Those who sleep or are about to, under `bed`.
    sleepers: AtomicU32,
    bed: Mutex<()>,
    wake: Condvar,
    /// Rounds of spinning in a second.
    pace: f64,
}

#[derive(Default)]
struct Group {
    /// Arrivals since the start, without those that were taken back.
    came: AtomicU64,
    /// How often all workers met, as far as this group was told.
    met: AtomicU64,
}

/// Workers of a group.
const GROUP: usize = 4;

/// How long a worker spins: several launches, yet no noticeable load once a step is over.
const SPIN: Duration = Duration::from_micros(50);

/// How long it waits before it helps: what is nearly done is done soonest by who is at it.
const PATIENCE: Duration = Duration::from_micros(2);

impl Barrier {
    fn new(workers: usize) -> Barrier {
        // One pause takes from 10 to 140 cycles, depending on the processor.
        const ROUNDS: u32 = 10_000;
        let start = Instant::now();
        (0..ROUNDS).for_each(|_| std::hint::spin_loop());
        let pace = f64::from(ROUNDS) / start.elapsed().as_secs_f64().max(1e-9);
        Barrier {
            workers,
            groups: (0..workers.div_ceil(GROUP)).map(|_| Line::default()).collect(),
            whole: Line::default(),
            sleepers: AtomicU32::default(),
            bed: Mutex::default(),
            wake: Condvar::new(),
            pace,
        }
    }

    fn group(&self, worker: usize) -> &Group {
        &self.groups[worker / GROUP].0
    }

    /// Counts the meetings. Stays as it is until the worker comes to the next.
    fn epoch(&self, worker: usize) -> u64 {
        self.group(worker).met.load(Relaxed)
    }

    /// Arrivals that make a worker's group whole for the meeting after so many, and whole groups that make it a meeting.
    fn wanted(&self, worker: usize, epoch: u64) -> (u64, u64) {
        let members = GROUP.min(self.workers - worker / GROUP * GROUP);
        ((epoch + 1) * members as u64, (epoch + 1) * self.groups.len() as u64)
    }

    /// Do all others wait for this worker, which does not?
    fn last(&self, worker: usize) -> bool {
        let (members, groups) = self.wanted(worker, self.epoch(worker));
        let others = self.groups.len() == 1 || self.whole.0.load(Relaxed) + 1 == groups;
        others && self.group(worker).came.load(Relaxed) + 1 == members
    }

    /// Returns when all workers have called it. The last to come runs `last` before anyone goes on; who waits for long runs
    /// `help`. What a worker wrote before is seen by all after.
    fn wait(&self, worker: usize, help: impl FnOnce(), last: impl Fn()) {
        let Some(epoch) = self.come(worker, &last) else { return };
        if self.spin(worker, epoch, PATIENCE) {
            return;
        }
        if self.leave(worker, epoch) {
            help();
            if self.come(worker, &last).is_none() {
                return;
            }
        }
        if self.spin(worker, epoch, SPIN) {
            return;
        }
        let mut bed = lock(&self.bed);
        self.sleepers.fetch_add(1, SeqCst);
        while self.group(worker).met.load(SeqCst) == epoch {
            bed = self.wake.wait(bed).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Relaxed);
    }

    /// The number of this meeting if others have yet to come.
    fn come(&self, worker: usize, last: impl Fn()) -> Option<u64> {
        let epoch = self.epoch(worker);
        let (members, groups) = self.wanted(worker, epoch);
        let waits = self.group(worker).came.fetch_add(1, AcqRel) + 1 < members;
        if waits || self.groups.len() > 1 && self.whole.0.fetch_add(1, AcqRel) + 1 < groups {
            return Some(epoch);
        }
        last();
        // SeqCst here and at the sleepers: either this load sees a sleeper or the sleeper sees this epoch.
        self.groups.iter().for_each(|g| g.0.met.store(epoch + 1, SeqCst));
        if self.sleepers.load(SeqCst) > 0 {
            drop(lock(&self.bed));
            self.wake.notify_all();
        }
        None
    }

    /// Takes back that this worker has come, unless its group is whole and counted.
    fn leave(&self, worker: usize, epoch: u64) -> bool {
        let (members, _) = self.wanted(worker, epoch);
        let here = |now: u64| (now < members).then(|| now - 1);
        self.group(worker).came.fetch_update(Relaxed, Relaxed, here).is_ok()
    }

    /// Waits for the others for a while; true if they came.
    fn spin(&self, worker: usize, epoch: u64, time: Duration) -> bool {
        (0..(time.as_secs_f64() * self.pace) as u32).any(|_| {
            std::hint::spin_loop();
            self.group(worker).met.load(Acquire) != epoch
        })
    }
}

/// Nothing that these locks guard can be left half done.
fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
