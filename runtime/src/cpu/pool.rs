//! The worker threads that walk a step. In: launches whose grids are known. Out: every grid index run exactly once, each
//! launch after those it depends on.
//!
//! Every worker walks the same list and takes the same decisions, so a barrier between dependent launches is all the
//! synchronisation there is, and independent launches need none. The thread that calls [`Pool::run`] is worker 0. It
//! returns when all workers are back at the barrier: none of them holds a step beyond its end.

use super::code::Entry;
use crate::plan::{BETWEEN, Meetings};
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

pub struct Pool {
    shared: Arc<Shared>,
    /// Held while a step runs.
    turn: Mutex<()>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    barrier: Barrier,
    /// What to walk after the next barrier; null: the workers end.
    step: AtomicPtr<Step<'static>>,
    /// Whether every launch stands alone between two barriers, so that it can be timed.
    apart: AtomicBool,
    /// Then: nanoseconds from `born` to the last meeting. Taken by the last to come, for who waits may wake late.
    met: AtomicU64,
    born: Instant,
    /// How many of a launch's shared grid indices are taken: a counter for each launch since the last barrier.
    taken: [Line<AtomicU64>; BETWEEN],
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
            step: AtomicPtr::default(),
            apart: AtomicBool::default(),
            met: AtomicU64::default(),
            born: Instant::now(),
            taken: Default::default(),
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
        unsafe { self.start(step, false, &mut || ()) }
    }

    /// Runs the launches one after the other and says how long each took.
    ///
    /// # Safety
    /// As for [`Pool::run`].
    pub unsafe fn time(&self, step: &Step) -> Vec<Duration> {
        let mut marks = Vec::with_capacity(step.launches.len() + 1);
        // SAFETY: the caller's promise.
        unsafe { self.start(step, true, &mut || marks.push(self.shared.met.load(Relaxed))) };
        // Without launches there are still the marks of start and end.
        marks.windows(2).map(|m| Duration::from_nanos(m[1] - m[0])).take(step.launches.len()).collect()
    }

    /// Calls `passed` after each barrier: one at the start, one wherever the walk needs it, one at the end.
    unsafe fn start(&self, step: &Step, apart: bool, passed: &mut dyn FnMut()) {
        let _turn = lock(&self.turn);
        let shared = &*self.shared;
        shared.step.store(std::ptr::from_ref(step).cast_mut().cast(), Relaxed);
        shared.apart.store(apart, Relaxed);
        shared.meet(0);
        // SAFETY: the caller's promise; this is worker 0 and no other.
        unsafe { shared.walk(step, 0, passed) };
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.step.store(std::ptr::null_mut(), Relaxed);
        self.shared.barrier.wait(|| ());
        for thread in self.threads.drain(..) {
            // A worker that panicked has said so already.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self, worker: usize) {
        loop {
            self.meet(0);
            // SAFETY: the step was stored before worker 0 came to the barrier just passed, and worker 0 keeps it until
            // the barrier at the end of `walk`.
            let Some(step) = (unsafe { self.step.load(Relaxed).as_ref() }) else { return };
            // SAFETY: promised to `Pool::run`.
            unsafe { self.walk(step, worker, &mut || ()) };
        }
    }

    /// One worker's part of a step, from behind the barrier that starts it to behind the one that ends it.
    unsafe fn walk(&self, step: &Step, worker: usize, passed: &mut dyn FnMut()) {
        let apart = self.apart.load(Relaxed);
        let locals = step.locals.wrapping_add(worker * step.stride);
        let mut meetings = Meetings::default();
        passed();
        for (i, launch) in step.launches.iter().enumerate() {
            if let Some(used) = meetings.before(i, launch.grid, launch.after, apart) {
                self.meet(used);
                passed();
            }
            let args = step.words[launch.args..].as_ptr();
            // SAFETY: the caller's promise; the launches this one depends on are over, and each index is run once.
            let call = |lo, hi| unsafe { (launch.entry)(args, locals, lo, hi) };
            match launch.grid {
                0 => {}
                1 if worker == 0 => call(0, 1),
                1 => {}
                grid => self.share(grid, &self.taken[meetings.since(i)].0, worker, call),
            }
        }
        self.meet(meetings.since(step.launches.len()));
        passed();
    }

    /// Waits for all workers; `used` launches since the last meeting had counters.
    fn meet(&self, used: usize) {
        self.barrier.wait(|| {
            self.taken[..used].iter().for_each(|t| t.0.store(0, Relaxed));
            if self.apart.load(Relaxed) {
                self.met.store(self.born.elapsed().as_nanos() as u64, Relaxed);
            }
        });
    }

    /// Half of a large grid is divided beforehand, so that a worker streams through neighbouring memory; the rest goes in
    /// small pieces to whoever is free, so that a core that is slow or disturbed does not hold up the others.
    fn share(&self, grid: u64, taken: &AtomicU64, worker: usize, call: impl Fn(u64, u64)) {
        let workers = self.barrier.workers as u64;
        let own = if grid < 16 * workers { 0 } else { grid / (2 * workers) };
        if own > 0 {
            call(worker as u64 * own, (worker as u64 + 1) * own);
        }
        let piece = (grid / (16 * workers)).max(1);
        loop {
            let lo = own * workers + taken.fetch_add(piece, Relaxed);
            if lo >= grid {
                return;
            }
            call(lo, (lo + piece).min(grid));
        }
    }
}

/// Where workers meet. Who waits long sleeps.
struct Barrier {
    workers: usize,
    arrived: Line<AtomicU32>,
    /// Counts the meetings.
    epoch: Line<AtomicU32>,
    /// Those who sleep or are about to, under `bed`.
    sleepers: AtomicU32,
    bed: Mutex<()>,
    wake: Condvar,
    /// Rounds of spinning before sleep.
    spins: u32,
}

/// How long a worker spins: several launches, yet no noticeable load once a step is over.
const SPIN: Duration = Duration::from_micros(50);

impl Barrier {
    fn new(workers: usize) -> Barrier {
        // One pause takes from 10 to 140 cycles, depending on the processor.
        const ROUNDS: u32 = 10_000;
        let start = Instant::now();
        (0..ROUNDS).for_each(|_| std::hint::spin_loop());
        let round = start.elapsed() / ROUNDS;
        let spins = (SPIN.as_nanos() / round.as_nanos().max(1)) as u32;
        Barrier {
            workers,
            arrived: Line::default(),
            epoch: Line::default(),
            sleepers: AtomicU32::default(),
            bed: Mutex::default(),
            wake: Condvar::new(),
            spins,
        }
    }

    /// Returns when all workers have called it. The last to come runs `last` before anyone goes on. What a worker wrote
    /// before is seen by all after.
    fn wait(&self, last: impl FnOnce()) {
        // It cannot change before this worker has arrived.
        let epoch = self.epoch.0.load(Relaxed);
        if self.arrived.0.fetch_add(1, AcqRel) + 1 == self.workers as u32 {
            last();
            self.arrived.0.store(0, Relaxed);
            // SeqCst here and at the sleepers: either this load sees a sleeper or the sleeper sees this epoch.
            self.epoch.0.store(epoch.wrapping_add(1), SeqCst);
            if self.sleepers.load(SeqCst) > 0 {
                drop(lock(&self.bed));
                self.wake.notify_all();
            }
            return;
        }
        for _ in 0..self.spins {
            if self.epoch.0.load(Acquire) != epoch {
                return;
            }
            std::hint::spin_loop();
        }
        let mut bed = lock(&self.bed);
        self.sleepers.fetch_add(1, SeqCst);
        while self.epoch.0.load(SeqCst) == epoch {
            bed = self.wake.wait(bed).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Relaxed);
    }
}

/// Nothing that these locks guard can be left half done.
fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
