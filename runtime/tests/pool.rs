//! The pool under many small launches: each grid index once, each launch after what it depends on, no worker lost.
#![cfg(target_arch = "x86_64")]

mod stub;

use compiler::linear::Count;
use runtime::buffer::{Buffer, Slice};
use runtime::cpu::CpuDevice;
use runtime::device::{Device, Error, Prepared};
use runtime::plan::Plan;
use std::sync::{Arc, mpsc};
use std::time::Duration;

const GRIDS: [u64; 5] = [0, 1, 2, 3, 1000];
const LEN: usize = 1000;

/// Fails instead of hanging.
fn within(limit: Duration, test: impl FnOnce() + Send + 'static) {
    let (done, finished) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        done.send(()).unwrap();
    });
    match finished.recv_timeout(limit) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("still running after {limit:?}"),
        _ => thread.join().unwrap(),
    }
}

/// Xorshift; the seed is not 0.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % n
    }
}

fn words(device: &dyn Device, slice: &Slice) -> Vec<u64> {
    let mut bytes = vec![0; slice.len()];
    device.read(slice, 0, &mut bytes).unwrap();
    bytes.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect()
}

/// A plan of random launches over four arrays in one arena, and what it should do to them.
struct Scene {
    plan: Prepared,
    arena: Buffer,
    /// (source, destination, grid) of each launch; the grid is the step's symbol if not given.
    launches: Vec<(usize, usize, Option<u64>)>,
    expected: [Vec<u64>; 4],
    hits: Vec<u64>,
}

impl Scene {
    fn new(device: &CpuDevice, count: usize, random: &mut Random) -> Scene {
        let arena = device.alloc(5 * LEN * 8).unwrap();
        let array = |i: usize| arena.slice(i * LEN * 8, LEN * 8).unwrap();
        let mut plan = Plan::new(["unused", "n", "0", "1", "2", "3", "1000"]);
        let mut launches = vec![];
        for _ in 0..count {
            let source = random.below(4);
            let destination = (source + 1 + random.below(3)) % 4;
            let pick = random.below(GRIDS.len() + 2);
            let grid = GRIDS.get(pick).copied();
            let symbol = grid.map_or("n".into(), |g| g.to_string());
            let program = stub::mirror(device, Count::Symbol(0), &symbol, random.below(3) == 0);
            plan.push(&program, vec![array(source), array(destination), array(4)]).unwrap();
            launches.push((source, destination, grid));
        }
        let expected = [(); 4].map(|_| vec![0; LEN]);
        Scene { plan: device.prepare(plan).unwrap(), arena, launches, expected, hits: vec![0; LEN] }
    }

    /// What a step is told.
    fn symbols(n: u64) -> Vec<i64> {
        [-1, n as i64].into_iter().chain(GRIDS.map(|g| g as i64)).collect()
    }

    fn step(&mut self, device: &CpuDevice, n: u64) {
        device.run(&mut self.plan, &Scene::symbols(n)).unwrap();
        self.expect(n);
    }

    /// Does what a step should have done.
    fn expect(&mut self, n: u64) {
        for &(source, destination, grid) in &self.launches {
            let n = grid.unwrap_or(n) as usize;
            for i in 0..n {
                self.expected[destination][i] =
                    self.expected[source][n - 1 - i].wrapping_mul(3).wrapping_add(1);
                self.hits[i] += 1;
            }
        }
    }

    fn check(&self, device: &CpuDevice) {
        let found = words(device, &self.arena.whole());
        for (i, array) in self.expected.iter().chain([&self.hits]).enumerate() {
            assert!(found[i * LEN..][..LEN] == array[..], "array {i} with {} threads", device.threads());
        }
    }
}

#[test]
fn a_hundred_thousand_launches_run_each_index_once_and_in_order() {
    within(Duration::from_secs(120), || {
        let device = stub::device(runtime::machine::cores().len().max(2));
        let mut random = Random(1);
        for _ in 0..10 {
            let mut scene = Scene::new(&device, 1000, &mut random);
            for _ in 0..10 {
                scene.step(&device, GRIDS[random.below(GRIDS.len())]);
            }
            scene.check(&device);
        }
    });
}

#[test]
fn one_thread_and_more_threads_than_cores() {
    within(Duration::from_secs(120), || {
        for threads in [1, 3, 5, 8, 13] {
            let device = stub::device(threads);
            let mut random = Random(threads as u64);
            let mut scene = Scene::new(&device, 200, &mut random);
            for _ in 0..5 {
                scene.step(&device, GRIDS[random.below(GRIDS.len())]);
            }
            scene.check(&device);
        }
    });
}

/// Also more plans than workers, and fewer.
#[test]
fn plans_beside_each_other_are_each_run_in_order() {
    within(Duration::from_secs(120), || {
        let device = stub::device(2);
        for plans in 0..5 {
            let mut random = Random(11 + plans as u64);
            let mut scenes: Vec<Scene> =
                (0..plans).map(|i| Scene::new(&device, 100 + i, &mut random)).collect();
            for round in 0..20 {
                let n = GRIDS[random.below(GRIDS.len())];
                let mut beside: Vec<_> =
                    scenes.iter_mut().map(|s| (&mut s.plan, Scene::symbols(n))).collect();
                if round % 2 == 0 {
                    device.run_beside(&mut beside).unwrap();
                } else {
                    let times = device.time_beside(&mut beside).unwrap();
                    assert!(times.iter().map(Vec::len).eq((0..plans).map(|i| 100 + i)));
                }
                scenes.iter_mut().for_each(|s| s.expect(n));
            }
            scenes.iter().for_each(|s| s.check(&device));
        }
    });
}

#[test]
fn workers_wake_after_they_slept() {
    within(Duration::from_secs(60), || {
        let device = stub::device(2);
        let mut scene = Scene::new(&device, 20, &mut Random(7));
        for pause in [0, 20, 45, 50, 55, 100, 1000, 20_000].repeat(20) {
            std::thread::sleep(Duration::from_micros(pause));
            scene.step(&device, 3);
        }
        scene.check(&device);
    });
}

#[test]
fn steps_from_several_threads_take_turns() {
    within(Duration::from_secs(60), || {
        let device = Arc::new(stub::device(2));
        let callers: Vec<_> = (1..=3)
            .map(|seed| {
                let device = device.clone();
                std::thread::spawn(move || {
                    let mut scene = Scene::new(&device, 50, &mut Random(seed));
                    for _ in 0..50 {
                        scene.step(&device, 2);
                    }
                    scene.check(&device);
                })
            })
            .collect();
        callers.into_iter().for_each(|c| c.join().unwrap());
    });
}

#[test]
fn timing_runs_the_step_and_times_each_launch() {
    let device = stub::device(2);
    let (array, hits) = (device.alloc(2 * 8_000_000).unwrap(), device.alloc(8_000_000).unwrap());
    let half = |i: usize| array.slice(i * 8_000_000, 8_000_000).unwrap();
    let program = stub::mirror(&device, Count::Symbol(0), "n", false);
    let nothing = stub::mirror(&device, Count::Const(0), "n", false);
    let mut plan = Plan::new(["n"]);
    plan.push(&program, vec![half(0), half(1), hits.whole()]).unwrap();
    plan.push(&nothing, vec![half(1), half(0), hits.whole()]).unwrap();
    let mut plan = device.prepare(plan).unwrap();
    let times = device.time(&mut plan, &[1_000_000]).unwrap();
    assert_eq!(times.len(), 2);
    assert!(times[0] > Duration::from_micros(100), "a million atomic additions in {times:?}");
    assert!(words(&device, &hits.whole()).iter().all(|&h| h == 1));
}

#[test]
fn an_empty_plan_runs() {
    let device = stub::device(2);
    let mut plan = device.prepare(Plan::new([""; 0])).unwrap();
    device.run(&mut plan, &[]).unwrap();
    assert!(device.time(&mut plan, &[]).unwrap().is_empty());
}

#[test]
fn wrong_steps_are_refused() {
    let device = stub::device(1);
    let buffer = device.alloc(64).unwrap();
    let mut plan = Plan::new(["n"]);
    plan.push(&stub::mirror(&device, Count::Symbol(0), "n", false), vec![buffer.whole(); 3]).unwrap();
    let mut plan = device.prepare(plan).unwrap();
    let message = device.run(&mut plan, &[]).unwrap_err().to_string();
    assert_eq!(message, "the plan's symbols are (n), and 0 values were given");
    let larger = stub::device(2);
    assert!(
        matches!(larger.run(&mut plan, &[1]), Err(Error::Foreign { .. })),
        "its scratch is for one worker"
    );
}
