//! Autoscaling: how many replicas each pool should have.
//!
//! [`judge`] says what a number of replicas would mean for a load, and so how many hold the SLO; [`forecast`] says what load
//! comes before a new replica is warm; [`scaler`] keeps the wanted number from flapping and inside its bounds. All three are pure.
//! [`service`] is the task that feeds them and publishes: the metric `tokenway_desired_replicas` and the admin API. Nothing here starts or
//! stops a replica: that is the orchestrator's (docs/autoscaling.md).

pub mod forecast;
mod judge;
pub mod scaler;
pub mod service;
