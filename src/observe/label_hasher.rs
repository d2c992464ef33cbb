//! The hasher of maps that every request reads.

/// Seeded at random in each process as the standard library's is, so that label values cannot be made to collide; fast on short keys.
pub(crate) type LabelHasher = hashlink::DefaultHashBuilder;
