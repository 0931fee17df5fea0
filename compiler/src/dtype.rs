//! Element types and vectors of them. A [`DType`] is a scalar kind and a lane count; lanes = 1 is a scalar.
//!
//! Constants of every kind travel as [`Bits`]: integers sign- or zero-extended to 64 bits, floats as the bits of the
//! (already rounded) `f32`.

use half::{bf16, f16};
use std::fmt;

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Scalar {
    Bool,
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    F16,
    BF16,
    F32,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DType {
    pub scalar: Scalar,
    pub lanes: u16,
}

impl Scalar {
    pub const ALL: [Scalar; 11] = {
        use Scalar::*;
        [Bool, I8, U8, I16, U16, I32, U32, I64, F16, BF16, F32]
    };

    /// Bytes in memory; a bool is one byte, 0 or 1.
    pub const fn bytes(self) -> usize {
        use Scalar::*;
        match self {
            Bool | I8 | U8 => 1,
            I16 | U16 | F16 | BF16 => 2,
            I32 | U32 | F32 => 4,
            I64 => 8,
        }
    }
    pub const fn bits(self) -> u32 {
        8 * self.bytes() as u32
    }
    pub const fn is_float(self) -> bool {
        matches!(self, Scalar::F16 | Scalar::BF16 | Scalar::F32)
    }
    pub const fn is_int(self) -> bool {
        !self.is_float() && !matches!(self, Scalar::Bool)
    }
    pub const fn is_signed(self) -> bool {
        matches!(self, Scalar::I8 | Scalar::I16 | Scalar::I32 | Scalar::I64) || self.is_float()
    }
    pub const fn name(self) -> &'static str {
        use Scalar::*;
        match self {
            Bool => "bool",
            I8 => "i8",
            U8 => "u8",
            I16 => "i16",
            U16 => "u16",
            I32 => "i32",
            U32 => "u32",
            I64 => "i64",
            F16 => "f16",
            BF16 => "bf16",
            F32 => "f32",
        }
    }
    pub const fn vec(self, lanes: u16) -> DType {
        DType { scalar: self, lanes }
    }

    /// Wraps an integer to this type's width (floats and i64 pass unchanged).
    pub const fn wrap(self, v: i64) -> i64 {
        use Scalar::*;
        match self {
            Bool => (v != 0) as i64,
            I8 => v as i8 as i64,
            U8 => v as u8 as i64,
            I16 => v as i16 as i64,
            U16 => v as u16 as i64,
            I32 => v as i32 as i64,
            U32 => v as u32 as i64,
            _ => v,
        }
    }

    /// Rounds an f32 to what this float type can hold.
    pub fn round(self, v: f32) -> f32 {
        match self {
            Scalar::F16 => f16::from_f32(v).to_f32(),
            Scalar::BF16 => bf16::from_f32(v).to_f32(),
            _ => v,
        }
    }

    /// Smallest and largest value of an integer type.
    pub const fn int_range(self) -> (i64, i64) {
        use Scalar::*;
        match self {
            Bool => (0, 1),
            I8 => (i8::MIN as i64, i8::MAX as i64),
            U8 => (0, u8::MAX as i64),
            I16 => (i16::MIN as i64, i16::MAX as i64),
            U16 => (0, u16::MAX as i64),
            I32 => (i32::MIN as i64, i32::MAX as i64),
            U32 => (0, u32::MAX as i64),
            _ => (i64::MIN, i64::MAX),
        }
    }
}

impl DType {
    pub const BOOL: DType = Scalar::Bool.vec(1);
    pub const I8: DType = Scalar::I8.vec(1);
    pub const U8: DType = Scalar::U8.vec(1);
    pub const I16: DType = Scalar::I16.vec(1);
    pub const U16: DType = Scalar::U16.vec(1);
    pub const I32: DType = Scalar::I32.vec(1);
    pub const U32: DType = Scalar::U32.vec(1);
    pub const I64: DType = Scalar::I64.vec(1);
    pub const F16: DType = Scalar::F16.vec(1);
    pub const BF16: DType = Scalar::BF16.vec(1);
    pub const F32: DType = Scalar::F32.vec(1);
    /// The type of every index and range.
    pub const INDEX: DType = DType::I64;

    pub const fn bytes(self) -> usize {
        self.scalar.bytes() * self.lanes as usize
    }
    pub const fn with_lanes(self, lanes: u16) -> DType {
        self.scalar.vec(lanes)
    }
    pub const fn is_float(self) -> bool {
        self.scalar.is_float()
    }

    /// Parses what `Display` prints: `f32`, `u8x64`.
    pub fn parse(s: &str) -> Option<DType> {
        Scalar::ALL.iter().find_map(|k| match s.strip_prefix(k.name())? {
            "" => Some(k.vec(1)),
            rest => rest.strip_prefix('x')?.parse().ok().filter(|&n| n > 1).map(|n| k.vec(n)),
        })
    }
}

impl From<Scalar> for DType {
    fn from(s: Scalar) -> DType {
        s.vec(1)
    }
}
impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}
impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.scalar.name())?;
        if self.lanes != 1 { write!(f, "x{}", self.lanes) } else { Ok(()) }
    }
}
impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One scalar value of any type; see the module comment for the encoding.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Bits(pub u64);

impl Bits {
    pub fn int(v: i64) -> Bits {
        Bits(v as u64)
    }
    pub fn float(v: f32) -> Bits {
        Bits(v.to_bits() as u64)
    }
    pub fn bool(v: bool) -> Bits {
        Bits(v as u64)
    }
    pub fn as_int(self) -> i64 {
        self.0 as i64
    }
    pub fn as_float(self) -> f32 {
        f32::from_bits(self.0 as u32)
    }
    pub fn as_bool(self) -> bool {
        self.0 != 0
    }

    /// Reads one element from the start of `b`.
    pub fn read(s: Scalar, b: &[u8]) -> Bits {
        use Scalar::*;
        match s {
            Bool => Bits((b[0] != 0) as u64),
            U8 => Bits(b[0] as u64),
            I8 => Bits::int(b[0] as i8 as i64),
            I16 => Bits::int(i16::from_le_bytes([b[0], b[1]]) as i64),
            U16 => Bits::int(u16::from_le_bytes([b[0], b[1]]) as i64),
            F16 => Bits::float(f16::from_le_bytes([b[0], b[1]]).to_f32()),
            BF16 => Bits::float(bf16::from_le_bytes([b[0], b[1]]).to_f32()),
            I32 => Bits::int(i32::from_le_bytes(b[..4].try_into().unwrap()) as i64),
            U32 => Bits::int(u32::from_le_bytes(b[..4].try_into().unwrap()) as i64),
            F32 => Bits(u32::from_le_bytes(b[..4].try_into().unwrap()) as u64),
            I64 => Bits(u64::from_le_bytes(b[..8].try_into().unwrap())),
        }
    }

    /// Writes one element to the start of `b`.
    pub fn write(self, s: Scalar, b: &mut [u8]) {
        match s {
            Scalar::F16 => b[..2].copy_from_slice(&f16::from_f32(self.as_float()).to_le_bytes()),
            Scalar::BF16 => b[..2].copy_from_slice(&bf16::from_f32(self.as_float()).to_le_bytes()),
            _ => b[..s.bytes()].copy_from_slice(&self.0.to_le_bytes()[..s.bytes()]),
        }
    }

    pub fn show(self, s: Scalar) -> String {
        match s {
            Scalar::Bool => self.as_bool().to_string(),
            _ if s.is_float() && self.as_float().is_nan() => format!("nan:{:08x}", self.0),
            _ if s.is_float() => format!("{:?}", self.as_float()),
            _ => self.as_int().to_string(),
        }
    }

    /// Reads what `show` prints.
    pub fn parse(s: Scalar, text: &str) -> Option<Bits> {
        match s {
            Scalar::Bool => text.parse().ok().map(Bits::bool),
            _ if s.is_float() => match text.strip_prefix("nan:") {
                Some(hex) => u32::from_str_radix(hex, 16).ok().map(|b| Bits(b as u64)),
                None => text.parse().ok().map(Bits::float),
            },
            _ => text.parse().ok().map(Bits::int),
        }
    }

    /// Whether this is how the module comment encodes some value of type `s`.
    pub fn is_canonical(self, s: Scalar) -> bool {
        if !s.is_float() {
            return s.wrap(self.as_int()) == self.as_int();
        }
        let v = self.as_float();
        self.0 >> 32 == 0 && (v.is_nan() || s.round(v).to_bits() == v.to_bits())
    }
}
