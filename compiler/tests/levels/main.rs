//! Tests across levels: every pass keeps the meaning, what shares a kernel, what the IR looks like on the way.

mod cases;
mod fusion;
mod passes;
mod snapshots;
