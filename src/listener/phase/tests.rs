use super::*;

const LIMITS: ConnectionLimits = ConnectionLimits {
    header_timeout: Duration::from_secs(10),
    keep_alive: Duration::from_secs(75),
    tls_handshake_timeout: Duration::from_secs(10),
    user_timeout: Duration::from_secs(10),
    is_behind_proxy: false,
};

fn begun() -> ConnectionPhase {
    let clock = Clock::start();
    ConnectionPhase::new(clock, clock.now(), IntCounter::new("panics", "p").unwrap())
}

async fn pass(seconds: u64) {
    tokio::time::advance(Duration::from_secs(seconds)).await;
}

/// Whether its deadline is these seconds away, no less.
async fn is_due_in(phase: &ConnectionPhase, seconds: u64) -> bool {
    pass(seconds - 1).await;
    let is_over_before = phase.next_check(&LIMITS).is_none();
    pass(1).await;
    !is_over_before && phase.next_check(&LIMITS).is_none()
}

#[tokio::test(start_paused = true)]
async fn the_first_head_is_due_from_accept() {
    assert!(is_due_in(&begun(), 10).await);
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_has_longer_than_a_head() {
    let phase = Arc::new(begun());
    drop(ConnectionPhase::request(&phase));
    pass(60).await;
    assert!(phase.next_check(&LIMITS).is_some());
    phase.read(b"POST ");
    assert!(is_due_in(&phase, 10).await);
}

#[tokio::test(start_paused = true)]
async fn a_busy_connection_has_no_deadline_here() {
    let phase = Arc::new(begun());
    let busy = ConnectionPhase::request(&phase);
    pass(3600).await;
    assert!(phase.next_check(&LIMITS).is_some());
    drop(busy);
    assert!(is_due_in(&phase, 75).await);
}

#[tokio::test(start_paused = true)]
async fn a_head_that_began_behind_a_request_is_due_from_its_answer() {
    let phase = Arc::new(begun());
    phase.note_heads(2);
    let busy = ConnectionPhase::request(&phase);
    pass(60).await;
    drop(busy);
    assert!(is_due_in(&phase, 10).await, "no idle time");
}
