//! Chooses a replica for a request: gathers what routing needs, asks the policy, reserves.
//!
//! Routing itself is pure; here its inputs are read from the fleet's atomics and snapshots. The load is counted
//! at decision time, by a guard, so that two requests of one burst see each other.
