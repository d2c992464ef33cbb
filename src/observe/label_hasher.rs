//! The hasher of maps that every request reads.

/// Seeded at random in each process as the standard library's is, so that nobody chooses label values that collide; made for short keys.
pub(super) type LabelHasher = hashlink::DefaultHashBuilder;
