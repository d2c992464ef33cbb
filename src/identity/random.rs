//! Secrets of our own making.

/// 256 bits of the TLS provider's generator, as hexadecimal digits.
pub fn random() -> String {
    let mut bytes = [0; 32];
    let filled = rustls::crypto::aws_lc_rs::default_provider().secure_random.fill(&mut bytes);
    filled.expect("invariant: the system has random numbers, or no TLS connection could be made either");
    crate::digits::hex_of(&bytes)
}
