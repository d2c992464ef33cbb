use super::*;

const LIMITS: ConnectionLimits = ConnectionLimits {
    header_timeout: Duration::from_secs(10),
    keep_alive: Duration::from_secs(75),
    tls_handshake_timeout: Duration::from_secs(10),
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

/// A body that never has anything, and how often it was asked.
struct Idle(u32);

impl Body for Idle {
    type Data = bytes::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        self.0 += 1;
        Poll::Pending
    }
}

#[test]
fn a_body_that_has_nothing_is_asked_once_in_a_poll_of_its_connection() {
    for (taking, expected) in [(None, 2), (Some(Arc::default()), 4)] {
        let phase = Arc::new(begun());
        let busy = ConnectionPhase::request(&phase);
        let mut body = BusyBody::new(Idle(0), false, busy, taking, EndGuard::default());
        for _ in 0..2 {
            phase.is_polled();
            for _ in 0..2 {
                let asked =
                    Pin::new(&mut body).poll_frame(&mut Context::from_waker(std::task::Waker::noop()));
                assert!(asked.is_pending());
            }
        }
        assert_eq!(body.body.0, expected, "over HTTP/2 the stream's task asks");
    }
}
