//! Tuned schedules: found, stored, used by the next model, and left aside where they do not fit.

use super::*;
use compiler::codegen::Target;
use compiler::codegen::ptx::Ptx;
use compiler::kernel::{parse, show};
use llm::paged::Row;
use llm::synth::{self, Changes};
use llm::tune::{Options as Wanted, Outcome};
use runtime::interp::InterpDevice;
use runtime::schedules::Schedules;
use runtime::step::Compiled;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const TOKENS: [u32; 6] = [1, 40, 300, 7, 7, 90];

/// A cache directory of its own, removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tune-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        Dir(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn story(schedules: Schedules) -> Option<Model> {
    let file = Gguf::open(&root().join("app/models/storyteller-Q4_K_M.gguf")).unwrap();
    let device = devices().into_iter().next()?;
    let options =
        Options { context: Some(16), activations: None, drafts: false, schedules: Arc::new(schedules) };
    Some(Model::load(device, file, options, &mut |_, _| ()).unwrap())
}

/// The kernels of one token's step.
fn kernels(m: &mut Model) -> Vec<Compiled> {
    m.launches(1).unwrap().into_iter().flat_map(|(l, _)| l.parts).collect()
}

/// The kernel that makes logits, its schedule and the key that it is known by.
fn head(m: &mut Model) -> (String, runtime::cache::Key) {
    let kernels = kernels(m);
    let kernel = kernels.iter().rfind(|k| k.text.contains("buffer output.weight")).unwrap();
    (show(&kernel.schedule), Schedules::key(&kernel.text, m.device().target().name()))
}

#[test]
fn what_was_tuned_is_used_by_the_next_model() {
    let dir = Dir::new("used");
    let silent = |what: &str| panic!("{what}");
    let Some(mut m) = story(Schedules::open(&dir.0, silent)) else { return };
    let want = m.feed(&TOKENS).unwrap().to_vec();
    let (usual, key) = head(&mut m);
    assert_ne!(usual, "");
    // A schedule of loops alone: anything is better.
    m.schedules().put(key, &[]);
    m.schedules().save().unwrap();

    let mut slow = story(Schedules::open(&dir.0, silent)).unwrap();
    assert_eq!(head(&mut slow).0, "");
    let all = Wanted { tokens: vec![1], apart: false, depth: 3, limit: Duration::from_millis(1500) };
    let (mut last, mut calls) = (0, 0);
    let report = slow
        .tune(&all, &mut |p| {
            assert!(p.done < p.of && p.done >= last && p.best <= p.first, "{} of {}", p.done, p.of);
            (last, calls) = (p.done, calls + 1);
        })
        .unwrap();
    assert!(calls > 0 && report.steps.len() == 1 && report.steps[0].before > 0.0);
    let share: f64 = report.kernels.iter().map(|k| k.share).sum();
    assert!((share - 1.0).abs() < 1e-6, "{share}");
    let wrong = report.kernels.iter().find(|k| matches!(k.outcome, Outcome::Wrong { .. }));
    assert!(wrong.is_none(), "{wrong:?}");
    let tuned = report.kernels.iter().find(|k| k.old.is_empty()).unwrap();
    let Outcome::Better(new) = &tuned.outcome else { panic!("{tuned:?}") };
    assert!(tuned.after < tuned.before && parse(new).is_some(), "{tuned:?}");
    assert_eq!(head(&mut slow).0, *new, "the model that was tuned goes on with it");

    let mut next = story(Schedules::open(&dir.0, silent)).unwrap();
    assert_eq!(head(&mut next).0, *new);
    let d = distance(next.feed(&TOKENS).unwrap(), &want, want.len());
    assert!(d.max < 0.05, "{d:?}");
}

#[test]
fn what_does_not_apply_is_left_aside_with_one_warning() {
    static WARNINGS: AtomicUsize = AtomicUsize::new(0);
    let warn = |what: &str| {
        assert!(what.contains("does not apply") && what.contains("glimmer tune"), "{what}");
        WARNINGS.fetch_add(1, Ordering::Relaxed);
    };
    let dir = Dir::new("stale");
    let schedules = Schedules::open(&dir.0, warn);
    let Some(mut usual) = story(Schedules::default()) else { return };
    let want = usual.feed(&TOKENS).unwrap().to_vec();
    for kernel in kernels(&mut usual) {
        let key = Schedules::key(&kernel.text, usual.device().target().name());
        schedules.put(key, &parse("vector(77,16) grid(0,0)").unwrap());
    }
    let mut m = story(schedules).unwrap();
    let of = |m: &mut Model| kernels(m).iter().map(|k| show(&k.schedule)).collect::<Vec<_>>();
    assert_eq!(of(&mut m), of(&mut usual));
    assert_eq!(m.feed(&TOKENS).unwrap(), want);
    assert_eq!(WARNINGS.load(Ordering::Relaxed), 1);
    let all = Wanted { tokens: vec![1], apart: false, depth: 0, limit: Duration::from_millis(200) };
    m.tune(&all, &mut |_| ()).unwrap();
}

#[test]
fn a_damaged_cache_costs_its_lines() {
    static WARNINGS: AtomicUsize = AtomicUsize::new(0);
    let warn = |what: &str| {
        assert!(what.contains("damaged"), "{what}");
        WARNINGS.fetch_add(1, Ordering::Relaxed);
    };
    let dir = Dir::new("damaged");
    let Some(mut m) = story(Schedules::open(&dir.0, warn)) else { return };
    let (_, key) = head(&mut m);
    m.schedules().put(key, &[]);
    m.schedules().save().unwrap();
    let file = dir.0.join("schedules");
    fs::write(&file, [b"\x00nonsense\n".as_slice(), &fs::read(&file).unwrap()].concat()).unwrap();
    let mut next = story(Schedules::open(&dir.0, warn)).unwrap();
    assert_eq!(WARNINGS.load(Ordering::Relaxed), 1);
    assert_eq!(head(&mut next).0, "", "the line that is whole");
}

#[test]
fn steps_that_cannot_be_are_refused() {
    let Some(mut m) = story(Schedules::default()) else { return };
    for apart in [false, true] {
        let all = Wanted { tokens: vec![100_000], apart, depth: 0, limit: Duration::ZERO };
        let error = m.tune(&all, &mut |_| ()).err().unwrap().to_string();
        assert!(error.contains("from 1 to"), "{error}");
    }
}

/// The kernels of a step of several sequences are others than those of as many tokens of one.
#[test]
fn batches_are_tuned_as_the_server_runs_them() {
    let Some(mut m) = story(Schedules::default()) else { return };
    let mut names = |apart: bool| {
        let all = Wanted { tokens: vec![2, 2], apart, depth: 5, limit: Duration::from_millis(100) };
        let report = m.tune(&all, &mut |_| ()).unwrap();
        assert_eq!(report.steps.iter().map(|s| s.tokens).collect::<Vec<_>>(), [2]);
        report.kernels.into_iter().map(|k| k.words).collect::<Vec<_>>()
    };
    let (batch, chunk) = (names(true), names(false));
    let rows = |names: &[String], n: usize| names.iter().any(|w| w.ends_with(&format!("{n} rows")));
    assert!(rows(&batch, 2) && !rows(&chunk, 2), "{batch:?} {chunk:?}");
}

/// No machine of the tests has the GPU that schedules were found on: the interpreter stands in for it, and looks for races.
fn like_a_gpu() -> InterpDevice {
    InterpDevice::like(Ptx::new(90).caps())
}

fn glm(device: Arc<dyn Device>) -> Model {
    let changes = Changes { layers: Some(2), vocab: Some(1024), experts: None };
    load(device, synth::open("glm-4.7-flash:q4_0", changes).unwrap(), 64, Activations::Int8)
}

fn near(got: &[f32], want: &[f32]) {
    let worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 0.02, "{worst}");
}

#[test]
fn schedules_that_ship_for_a_gpu_compute_what_others_do() {
    let schedules = |m: &mut Model| -> Vec<String> {
        let launches = m.launches(1).unwrap();
        launches.iter().flat_map(|(l, _)| &l.parts).map(|k| show(&k.schedule)).collect()
    };
    let mut shipped = glm(Arc::new(like_a_gpu().named("ptx-sm90")));
    let (found, proposed) = (schedules(&mut shipped), schedules(&mut glm(Arc::new(like_a_gpu()))));
    assert!(found.iter().filter(|s| !proposed.contains(s)).count() >= 5, "{found:#?}");
    let Some(cpu) = devices().into_iter().next() else { return };
    near(shipped.feed(&[77]).unwrap(), glm(cpu).feed(&[77]).unwrap());
}

#[test]
fn schedules_that_ship_for_tokens_of_several_sequences_compute_what_others_do() {
    let Some(cpu) = devices().into_iter().next() else { return };
    let (mut shipped, mut plain) = (glm(Arc::new(like_a_gpu().named("ptx-sm90"))), glm(cpu));
    for m in [&mut shipped, &mut plain] {
        let tables = m.tables(8, 1).unwrap();
        let row = |(i, table)| Row { token: 77 * i as u32, pos: 0, table };
        let rows: Vec<Row> = tables.iter().map(Vec::as_slice).enumerate().map(row).collect();
        m.batch(&rows).unwrap();
    }
    (0..8).for_each(|i| near(shipped.row(i).unwrap(), plain.row(i).unwrap()));
}
