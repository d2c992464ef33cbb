//! Rendezvous hashing: every gateway ranks the replicas for a key alike, without talking to the others.
//!
//! The replica with the highest rank for a key wins; when a replica leaves, only its own keys move, and when one
//! joins, it takes an equal share from each. Names, not places, are hashed, so that the order in which replicas
//! are listed does not matter. It knows nothing of load.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What a replica's name becomes: computed once, ranked often, the same on all gateways. Keys (of sessions and prompts) are hashed
/// under `routing.seed`, so that a client cannot aim at a replica.
pub fn identity(seed: u64, name: &[u8]) -> u64 {
    xxh3_64_with_seed(name, seed)
}

/// The rank of a replica for a key: highest wins.
pub fn rank(key: u64, replica: u64) -> u64 {
    xxh3_64_with_seed(&key.to_le_bytes(), replica)
}

/// A uniform number in (0, 1) from a rank, for weighted choices.
pub fn unit(rank: u64) -> f64 {
    // 52 bits and a half fit a double exactly; the half step keeps it off both ends, where a logarithm would break.
    ((rank >> 12) as f64 + 0.5) / (1u64 << 52) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn winner(key: u64, replicas: &[u64]) -> u64 {
        replicas.iter().copied().max_by_key(|r| rank(key, *r)).unwrap()
    }

    #[test]
    fn only_the_keys_of_a_leaving_replica_move() {
        let replicas: Vec<u64> = (0..8).map(|i| identity(1, format!("gpu-{i}").as_bytes())).collect();
        let without: Vec<u64> = replicas[1..].to_vec();
        for key in 0..2000 {
            let before = winner(key, &replicas);
            if before != replicas[0] {
                assert_eq!(winner(key, &without), before, "key {key}");
            }
        }
    }

    #[test]
    fn keys_spread_evenly() {
        let replicas: Vec<u64> = (0..8).map(|i| identity(1, format!("gpu-{i}").as_bytes())).collect();
        for replica in &replicas {
            let share = (0..8000).filter(|k| winner(*k, &replicas) == *replica).count();
            assert!((800..1200).contains(&share), "{share} of 8000");
        }
    }

    #[test]
    fn unit_stays_inside_its_open_interval() {
        for rank in [0, 1, u64::MAX / 2, u64::MAX] {
            assert!(unit(rank) > 0.0 && unit(rank) < 1.0);
        }
    }
}
