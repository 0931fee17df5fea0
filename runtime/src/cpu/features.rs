//! Which instructions this processor runs. In: nothing, or the tier a person asked for. Out: [`Features`], or an error
//! that says what is missing.
//!
//! Only what the processor has *and* the operating system saves on a context switch is reported.

use crate::device::Error;
use compiler::codegen::x86::Features;

/// A named step of the instruction set; each contains those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Tier {
    /// AVX2, FMA, F16C and BMI2: the least that is compiled for.
    Avx2,
    Avx512,
    Avx512Vnni,
    Amx,
}

/// What this processor has, cut down to `tier` if one is given.
pub fn detect(tier: Option<Tier>) -> Result<Features, Error> {
    let found = processor().map_err(unsupported)?;
    let Some(tier) = tier else { return Ok(found) };
    if tier > best(found) {
        return Err(unsupported(format!("it lacks {tier:?}, its best tier is {:?}", best(found))));
    }
    Ok(Features {
        avx512: tier >= Tier::Avx512,
        vnni: tier >= Tier::Avx512Vnni,
        avx_vnni: found.avx_vnni && tier >= Tier::Avx512Vnni,
        amx: tier >= Tier::Amx,
    })
}

fn best(f: Features) -> Tier {
    match f {
        Features { amx: true, .. } => Tier::Amx,
        Features { vnni: true, .. } => Tier::Avx512Vnni,
        Features { avx512: true, .. } => Tier::Avx512,
        _ => Tier::Avx2,
    }
}

fn unsupported(why: String) -> Error {
    let instead = "the interpreter (--device interp) runs anywhere, slowly".into();
    Error::Unsupported { device: "the CPU device".into(), why, instead }
}

#[cfg(not(target_arch = "x86_64"))]
fn processor() -> Result<Features, String> {
    Err(format!("code is generated for x86-64 and this is {}", std::env::consts::ARCH))
}

#[cfg(target_arch = "x86_64")]
fn processor() -> Result<Features, String> {
    macro_rules! all { ($($name:tt),*) => { $(is_x86_feature_detected!($name))&&* } }
    let needed = [
        ("AVX2", all!("avx2")),
        ("FMA", all!("fma")),
        ("F16C", all!("f16c")),
        ("BMI2", all!("bmi1", "bmi2", "lzcnt")),
    ];
    let missing: Vec<_> = needed.iter().filter(|n| !n.1).map(|n| n.0).collect();
    if !missing.is_empty() {
        return Err(format!("its processor lacks {}", missing.join(", ")));
    }
    let avx512 = all!("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd");
    let vnni = avx512 && all!("avx512vnni");
    Ok(Features { avx512, vnni, avx_vnni: all!("avxvnni"), amx: vnni && all!("avx512bf16") && amx() })
}

/// Asks the system for the tile registers, which it grants a process once and for all its threads.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn amx() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    const BF16_TILE_INT8: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    let leaf = std::arch::x86_64::__cpuid_count(7, 0);
    // SAFETY: the call changes nothing but this process' permission.
    let granted =
        || unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 };
    leaf.edx & BF16_TILE_INT8 == BF16_TILE_INT8 && granted()
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn amx() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_takes_away_and_never_adds() {
        let Ok(found) = detect(None) else { return println!("skipped: no AVX2") };
        for tier in [Tier::Avx2, Tier::Avx512, Tier::Avx512Vnni, Tier::Amx] {
            match detect(Some(tier)) {
                Ok(f) => assert_eq!(best(f), tier),
                Err(e) => {
                    assert!(tier > best(found));
                    assert!(e.to_string().contains("--device interp"), "{e}");
                }
            }
        }
        assert_eq!(detect(Some(Tier::Avx2)).unwrap(), Features::default());
    }
}
