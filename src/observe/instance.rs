//! What this gateway is called among others: `service.instance.id` of its telemetry and `instance` of its alerts.

use std::net::SocketAddr;
use std::sync::Arc;

/// `HOST:PORT` of the admin port, as Prometheus names a scraped target: the same after a restart.
pub fn name(admin: SocketAddr) -> Arc<str> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let host = host.or_else(|| std::env::var("HOSTNAME").ok());
    let host = host.as_deref().map(str::trim).filter(|host| !host.is_empty());
    format!("{}:{}", host.unwrap_or("localhost"), admin.port()).into()
}
