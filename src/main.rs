//! The `tokenway` binary.
fn main() {}
