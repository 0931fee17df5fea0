//! Runs PTX on the CPU: the text of one entry, buffers and symbol values in, the buffers as the threads leave them out.
//!
//! It knows the instructions that the code generator emits and nothing else. A misaligned access, one outside a buffer
//! or an unknown instruction panics. Threads run one by one and meet at barriers and shuffles.

use half::{bf16, f16};
use std::collections::HashMap;

enum Operand {
    Reg(usize),
    Imm(u64),
    /// A register and a constant.
    At(usize, i64),
    Tuple(Vec<usize>),
    Name(String),
}

struct Ins {
    guard: Option<usize>,
    /// The mnemonic's parts.
    op: Vec<String>,
    args: Vec<Operand>,
}

struct Kernel {
    code: Vec<Ins>,
    labels: HashMap<String, usize>,
    registers: usize,
}

/// Where buffer `i` lies, far from every other.
fn buffer_address(i: usize) -> u64 {
    (i as u64 + 1) << 40
}

fn parse(text: &str) -> Kernel {
    let body = &text[text.find('{').unwrap() + 1..text.rfind('}').unwrap()];
    let mut names = HashMap::new();
    let (mut code, mut labels) = (vec![], HashMap::new());
    for line in body.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('.')) {
        if let Some(label) = line.strip_suffix(':') {
            labels.insert(label.to_string(), code.len());
            continue;
        }
        let mut reg = |name: &str| {
            let next = names.len();
            *names.entry(name.to_string()).or_insert(next)
        };
        let mut line = line.strip_suffix(';').unwrap();
        let mut guard = None;
        if let Some(rest) = line.strip_prefix('@') {
            let (p, rest) = rest.split_once(' ').unwrap();
            guard = Some(reg(p));
            line = rest;
        }
        let (op, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut args = vec![];
        let mut rest = rest.trim();
        while !rest.is_empty() {
            let end = match rest.as_bytes()[0] {
                b'{' => rest.find('}').unwrap() + 1,
                _ => rest.find(',').unwrap_or(rest.len()),
            };
            let (token, tail) = rest.split_at(end);
            args.push(operand(token.trim(), &mut reg));
            rest = tail.trim_start_matches([',', ' ']);
        }
        code.push(Ins { guard, op: op.split('.').map(str::to_string).collect(), args });
    }
    Kernel { code, labels, registers: names.len() }
}

fn operand(token: &str, reg: &mut impl FnMut(&str) -> usize) -> Operand {
    let number = |t: &str| -> Option<u64> {
        if let Some(hex) = t.strip_prefix("0x").or(t.strip_prefix("0f")) {
            return u64::from_str_radix(hex, 16).ok();
        }
        t.parse::<i64>().ok().map(|v| v as u64)
    };
    if let Some(inner) = token.strip_prefix('{') {
        return Operand::Tuple(inner.trim_end_matches('}').split(", ").map(&mut *reg).collect());
    }
    if let Some(inner) = token.strip_prefix('[') {
        let inner = inner.trim_end_matches(']');
        if !inner.starts_with('%') {
            return Operand::Name(inner.into());
        }
        let end = inner.find(['+', '-']).unwrap_or(inner.len());
        let offset = inner[end..].trim_start_matches('+');
        return Operand::At(reg(&inner[..end]), if offset.is_empty() { 0 } else { offset.parse().unwrap() });
    }
    match number(token) {
        Some(v) => Operand::Imm(v),
        None if token.starts_with('%') && token != "%ctaid.x" && token != "%tid.x" => {
            Operand::Reg(reg(token))
        }
        None => Operand::Name(token.into()),
    }
}

struct Machine<'a> {
    kernel: &'a Kernel,
    buffers: &'a mut [Vec<u8>],
    symbols: Vec<u8>,
    shared: Vec<u8>,
    block: u64,
}

struct Thread {
    id: u64,
    pc: usize,
    regs: Vec<u64>,
    /// Copies to shared memory that it has not waited for: to where and from where.
    copies: Vec<[u64; 2]>,
}

pub fn run(text: &str, grid: i64, threads: u32, shared: usize, buffers: &mut [Vec<u8>], symbols: &[i64]) {
    let kernel = parse(text);
    let symbols = symbols.iter().flat_map(|s| s.to_le_bytes()).collect();
    let mut m = Machine { kernel: &kernel, buffers, symbols, shared: vec![0xcd; shared], block: 0 };
    for block in 0..grid as u64 {
        m.block = block;
        let regs = vec![0xdead_beef_dead_beef; kernel.registers];
        let thread = |id| Thread { id, pc: 0, regs: regs.clone(), copies: vec![] };
        m.run_block((0..threads as u64).map(thread).collect());
    }
}

impl Machine<'_> {
    fn run_block(&mut self, mut threads: Vec<Thread>) {
        loop {
            for t in &mut threads {
                self.run_until_meeting(t);
            }
            // Barriers and shuffles are for the threads that have not left.
            threads.retain(|t| self.kernel.code[t.pc].op[0] != "exit");
            let pc = threads[0].pc;
            assert!(threads.iter().all(|t| t.pc == pc), "threads meet at different places");
            let ins = &self.kernel.code[pc];
            match ins.op[0].as_str() {
                "ret" => return,
                "bar" => {}
                "mma" => threads.chunks_mut(32).for_each(|warp| mma(warp, &ins.op, &ins.args)),
                _ => {
                    let [Operand::Reg(dst), Operand::Reg(src), Operand::Imm(distance), ..] = &ins.args[..]
                    else {
                        panic!("shuffle operands")
                    };
                    let all: Vec<u64> = threads.iter().map(|t| t.regs[*src]).collect();
                    for (i, t) in threads.iter_mut().enumerate() {
                        t.regs[*dst] = all[i ^ *distance as usize];
                    }
                }
            }
            threads.iter_mut().for_each(|t| t.pc += 1);
        }
    }

    fn run_until_meeting(&mut self, t: &mut Thread) {
        loop {
            let ins = &self.kernel.code[t.pc];
            let active = ins.guard.is_none_or(|p| t.regs[p] != 0);
            let meets = matches!(ins.op[0].as_str(), "ret" | "bar" | "shfl" | "mma");
            if meets || ins.op[0] == "exit" && active {
                return;
            }
            t.pc += 1;
            if !active {
                continue;
            }
            if let ("bra", [Operand::Name(to)]) = (ins.op[0].as_str(), &ins.args[..]) {
                t.pc = self.kernel.labels[to];
                continue;
            }
            self.step(t, ins);
        }
    }

    fn step(&mut self, t: &mut Thread, ins: &Ins) {
        let ty = ins.op.last().unwrap().as_str();
        let op: Vec<&str> = ins.op.iter().map(String::as_str).collect();
        match (op[0], &ins.args[..]) {
            // Kernels run one after the other here.
            ("griddepcontrol", []) => {}
            ("ld", [Operand::Reg(d), Operand::Name(name)]) => {
                t.regs[*d] = match name.strip_prefix('p') {
                    Some(i) => buffer_address(i.parse().unwrap()),
                    None => buffer_address(self.buffers.len()),
                };
            }
            ("ld", [dst, Operand::At(base, offset)]) => {
                let address = t.regs[*base].wrapping_add_signed(*offset);
                let (dst, size) = (registers(dst), size_of(ty));
                assert_eq!(self.place(&op, address) % (size * dst.len()) as u64, 0, "misaligned {op:?}");
                for (i, d) in dst.iter().enumerate() {
                    let raw = self.bytes(&op, address, i * size, size).to_vec();
                    t.regs[*d] =
                        extend(ty, u64::from_le_bytes(std::array::from_fn(|i| *raw.get(i).unwrap_or(&0))));
                }
            }
            ("st", [Operand::At(base, offset), src]) => {
                let address = t.regs[*base].wrapping_add_signed(*offset);
                let (src, size) = (registers(src), size_of(ty));
                assert_eq!(self.place(&op, address) % (size * src.len()) as u64, 0, "misaligned {op:?}");
                for (i, s) in src.iter().enumerate() {
                    let raw = t.regs[*s].to_le_bytes();
                    self.bytes(&op, address, i * size, size).copy_from_slice(&raw[..size]);
                }
            }
            ("prefetch", _) => {}
            // A copy is done as late as it may be.
            ("cp", [Operand::At(to, a), Operand::At(from, b), Operand::Imm(16)]) => {
                let places = [(to, a), (from, b)].map(|(base, at)| t.regs[*base].wrapping_add_signed(*at));
                t.copies.push(places);
            }
            ("cp", []) => {
                for [to, from] in std::mem::take(&mut t.copies) {
                    assert_eq!((to % 16, from % 16), (0, 0), "misaligned {op:?}");
                    let raw = self.bytes(&["ld", "global"], from, 0, 16).to_vec();
                    self.bytes(&["st", "shared"], to, 0, 16).copy_from_slice(&raw);
                }
            }
            ("mov", [Operand::Reg(d), Operand::Name(name)]) => {
                t.regs[*d] = match name.as_str() {
                    "%ctaid.x" => self.block,
                    "%tid.x" => t.id,
                    _ => name.strip_prefix("shared+").unwrap().parse().unwrap(),
                };
            }
            ("mov", [Operand::Tuple(parts), Operand::Reg(s)]) => {
                let bits = size_of(ty) * 8 / 2;
                let v = t.regs[*s];
                t.regs[parts[0]] = v & ((1 << bits) - 1);
                t.regs[parts[1]] = v >> bits & ((1 << bits) - 1);
            }
            ("mov", [Operand::Reg(d), Operand::Tuple(parts)]) => {
                t.regs[*d] = t.regs[parts[0]] & 0xffff_ffff | t.regs[parts[1]] << 32;
            }
            (_, [Operand::Reg(d), sources @ ..]) => {
                let sources: Vec<u64> = sources
                    .iter()
                    .map(|s| match s {
                        Operand::Reg(r) => t.regs[*r],
                        Operand::Imm(v) => *v,
                        _ => panic!("operand of {op:?}"),
                    })
                    .collect();
                t.regs[*d] = compute(&op, ty, &sources);
            }
            _ => panic!("unknown instruction {op:?}"),
        }
    }

    /// The offset within what is addressed.
    fn place(&self, op: &[&str], address: u64) -> u64 {
        if op[1] == "shared" { address & 0xffff_ffff } else { address & ((1 << 40) - 1) }
    }
    fn bytes(&mut self, op: &[&str], address: u64, at: usize, size: usize) -> &mut [u8] {
        let start = self.place(op, address) as usize + at;
        let which = (address >> 40) as usize;
        let memory = match op[1] {
            "shared" => &mut self.shared,
            _ if which == self.buffers.len() + 1 => &mut self.symbols,
            _ => &mut self.buffers[which - 1],
        };
        &mut memory[start..start + size]
    }
}

/// m16n8k16 of bf16 or f16, the fragments as the PTX manual has them: thread 4g + t has of A the pairs at (g, 2t), (g + 8, 2t),
/// (g, 2t + 8), (g + 8, 2t + 8), of B those at (2t, g), (2t + 8, g), of C (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
fn mma(warp: &mut [Thread], op: &[String], operands: &[Operand]) {
    let wide = |bits: u16| match op.iter().any(|part| part == "bf16") {
        true => bf16::from_bits(bits).to_f32(),
        false => f16::from_bits(bits).to_f32(),
    };
    let [d, a, b, c] = [0, 1, 2, 3].map(|i| registers(&operands[i]));
    let half = |word: u64, i: usize| wide((word >> (16 * i)) as u16);
    let of_a = |w: &[Thread], row: usize, k: usize| {
        half(w[4 * (row % 8) + k % 8 / 2].regs[a[row / 8 + 2 * (k / 8)]], k % 2)
    };
    let of_b = |w: &[Thread], k: usize, n: usize| half(w[4 * n + k % 8 / 2].regs[b[k / 8]], k % 2);
    let mut sums = vec![];
    for t in 0..32 {
        for (i, c) in c.iter().enumerate() {
            let (row, column) = (t / 4 + 8 * (i / 2), 2 * (t % 4) + i % 2);
            let start = f32::from_bits(warp[t].regs[*c] as u32);
            sums.push((0..16).fold(start, |s, k| s + of_a(warp, row, k) * of_b(warp, k, column)));
        }
    }
    for (t, sums) in warp.iter_mut().zip(sums.chunks(4)) {
        d.iter().zip(sums).for_each(|(d, s)| t.regs[*d] = s.to_bits() as u64);
    }
}

fn registers(o: &Operand) -> Vec<usize> {
    match o {
        Operand::Reg(r) => vec![*r],
        Operand::Tuple(all) => all.clone(),
        _ => panic!("no registers"),
    }
}

fn size_of(ty: &str) -> usize {
    ty.trim_start_matches(|c: char| c.is_ascii_alphabetic()).parse::<usize>().unwrap() / 8
}

/// The low bits of `v` as `ty`, sign-extended if that is signed.
fn extend(ty: &str, v: u64) -> u64 {
    match ty {
        "s8" => v as i8 as i64 as u64,
        "s16" => v as i16 as i64 as u64,
        "s32" => v as i32 as i64 as u64,
        "u8" | "b8" => v as u8 as u64,
        "u16" | "b16" | "f16" => v as u16 as u64,
        "u32" | "b32" | "f32" => v as u32 as u64,
        "s64" | "u64" | "b64" => v,
        "pred" => (v != 0) as u64,
        _ => panic!("type {ty}"),
    }
}

fn compute(op: &[&str], ty: &str, raw: &[u64]) -> u64 {
    if ty == "f32" && op[0] != "cvt" {
        return float(op, raw);
    }
    if op[0] == "cvt" {
        return convert(op, ty, raw);
    }
    if op[0] == "selp" {
        return extend(ty, if raw[2] != 0 { raw[0] } else { raw[1] });
    }
    let wide = ty.ends_with("64");
    let bits: u32 = if wide { 64 } else { 32 };
    let v: Vec<u64> = raw.iter().map(|v| extend(ty, *v)).collect();
    let signed = ty.starts_with('s');
    let s = |i: usize| v[i] as i64;
    let word = |i: usize| raw[i] as u32;
    let result = match op[0] {
        "setp" => {
            let order = if signed { s(0).cmp(&s(1)) } else { v[0].cmp(&v[1]) };
            return match op[1] {
                "lt" => order.is_lt(),
                "le" => order.is_le(),
                "ge" => order.is_ge(),
                "eq" => order.is_eq(),
                "ne" => order.is_ne(),
                other => panic!("comparison {other}"),
            } as u64;
        }
        "mov" | "cvta" => v[0],
        "add" => v[0].wrapping_add(v[1]),
        "sub" => v[0].wrapping_sub(v[1]),
        "mul" if op[1] == "wide" => return v[0].wrapping_mul(v[1]),
        "mul" if op[1] == "hi" => ((v[0] as u128 * v[1] as u128) >> bits) as u64,
        "mul" => v[0].wrapping_mul(v[1]),
        "mad" if op[1] == "wide" => return v[0].wrapping_mul(v[1]).wrapping_add(raw[2]),
        "mad" => v[0].wrapping_mul(v[1]).wrapping_add(v[2]),
        "div" if v[1] == 0 => u64::MAX,
        "div" if signed => s(0).wrapping_div(s(1)) as u64,
        "div" => v[0] / v[1],
        "rem" => v[0] % v[1],
        "min" => {
            if signed {
                s(0).min(s(1)) as u64
            } else {
                v[0].min(v[1])
            }
        }
        "max" => {
            if signed {
                s(0).max(s(1)) as u64
            } else {
                v[0].max(v[1])
            }
        }
        "and" => v[0] & v[1],
        "or" => v[0] | v[1],
        "xor" => v[0] ^ v[1],
        "not" if ty == "pred" => (v[0] == 0) as u64,
        "not" => !v[0],
        "neg" => v[0].wrapping_neg(),
        "shl" => {
            if word(1) >= bits {
                0
            } else {
                v[0] << word(1)
            }
        }
        "shr" if signed => (s(0) >> word(1).min(bits - 1)) as u64,
        "shr" => {
            if word(1) >= bits {
                0
            } else {
                v[0] >> word(1)
            }
        }
        "bfe" => {
            let (at, len) = (word(1), word(2));
            let up = word(0) << (32 - at - len);
            if signed { ((up as i32) >> (32 - len)) as u64 } else { (up >> (32 - len)) as u64 }
        }
        "prmt" => {
            let bytes = (word(0) as u64 | (word(1) as u64) << 32).to_le_bytes();
            let byte = |i: u32| {
                let choice = word(2) >> (4 * i) & 15;
                let b = bytes[choice as usize & 7];
                let b = if choice < 8 { b } else { ((b as i8) >> 7) as u8 };
                (b as u64) << (8 * i)
            };
            (0..4).map(byte).sum()
        }
        "lop3" => {
            let bit = |i: u32| {
                let index = (word(0) >> i & 1) << 2 | (word(1) >> i & 1) << 1 | word(2) >> i & 1;
                ((word(3) >> index & 1) as u64) << i
            };
            (0..32).map(bit).sum()
        }
        "dp4a" => {
            let (a, b) = (word(0).to_le_bytes(), word(1).to_le_bytes());
            let sum: i64 = a.iter().zip(b).map(|(a, b)| *a as i64 * (b as i8) as i64).sum();
            sum.wrapping_add(raw[2] as i64) as u64
        }
        _ => panic!("unknown instruction {op:?}"),
    };
    if ty == "pred" || wide { result } else { result as u32 as u64 }
}

fn float(op: &[&str], raw: &[u64]) -> u64 {
    let x = |i: usize| f32::from_bits(raw[i] as u32);
    let result = match op[0] {
        "setp" => {
            return match op[1] {
                "lt" => x(0) < x(1),
                "le" => x(0) <= x(1),
                "eq" => x(0) == x(1),
                _ => x(0) != x(1),
            } as u64;
        }
        "add" => x(0) + x(1),
        "sub" => x(0) - x(1),
        "mul" => x(0) * x(1),
        "div" => x(0) / x(1),
        "min" => x(0).min(x(1)),
        "max" => x(0).max(x(1)),
        "neg" => -x(0),
        "fma" => x(0).mul_add(x(1), x(2)),
        "rcp" => 1.0 / x(0),
        "sqrt" => x(0).sqrt(),
        "ex2" => x(0).exp2(),
        "lg2" => x(0).log2(),
        "sin" => x(0).sin(),
        _ => panic!("unknown instruction {op:?}"),
    };
    result.to_bits() as u64
}

fn convert(op: &[&str], from: &str, raw: &[u64]) -> u64 {
    let to = op[op.len() - 2];
    let x = |i: usize| f32::from_bits(raw[i] as u32);
    let integer = extend(if from == "f32" { "u32" } else { from }, raw[0]);
    match (to, from) {
        ("f32", "f32") => (match op[1] {
            "rmi" => x(0).floor(),
            "rpi" => x(0).ceil(),
            "rzi" => x(0).trunc(),
            _ => x(0).round_ties_even(),
        })
        .to_bits() as u64,
        ("f32", "f16") => f16::from_bits(integer as u16).to_f32().to_bits() as u64,
        ("f16x2", _) => f16::from_f32(x(1)).to_bits() as u64 | (f16::from_f32(x(0)).to_bits() as u64) << 16,
        ("bf16x2", _) => {
            bf16::from_f32(x(1)).to_bits() as u64 | (bf16::from_f32(x(0)).to_bits() as u64) << 16
        }
        ("f32", _) if from.starts_with('s') => (integer as i64 as f32).to_bits() as u64,
        ("f32", _) => (integer as f32).to_bits() as u64,
        ("s32", "f32") => x(0) as i32 as u32 as u64,
        ("u32", "f32") => x(0) as u32 as u64,
        ("s64", "f32") => x(0) as i64 as u64,
        ("s64" | "u64", _) => integer,
        _ => integer as u32 as u64,
    }
}
