//! A prefill leg that flies beside its decoding one (connector `sglang`): both engines get their request at once and meet in a room;
//! the decoding one answers.
//!
//! The leg is a task: it outlives the decoding leg's first answer, because an engine that computes prompts is done only a moment
//! later, and its answer teaches its pool. Dropped before, it closes its connection, and the engine aborts.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Gateway;
use super::attempt::{AttemptError, BufferedResponse, UpstreamResponse};
use super::outbound::{ActiveAttempt, Flight};
use crate::background::boxed;
use crate::clock::Stamp;
use crate::fleet::pick::Pick;
use crate::record::{Attempt, TokenCounts};
use crate::request::dialect::Dialect;

/// A prefill leg under way.
#[derive(Debug)]
pub(super) struct Beside {
    landing: oneshot::Receiver<Landed>,
    /// It has computed the prompt.
    done: Option<Landed>,
    stop: DropGuard,
}

/// What the leg came to.
#[derive(Debug)]
pub(super) struct Landed {
    pub(super) result: Result<UpstreamResponse, AttemptError>,
    pub(super) pick: Box<Pick>,
    pub(super) entry: Attempt,
}

impl Landed {
    fn is_success(&self) -> bool {
        matches!(&self.result, Ok(UpstreamResponse::Buffered(answer)) if answer.head.status.is_success())
    }
}

impl Beside {
    pub(super) fn start(mut flight: Flight, gateway: &Gateway) -> Self {
        let (stop, clock) = (CancellationToken::new(), gateway.clock);
        let (sender, landing) = oneshot::channel();
        let over = stop.clone();
        gateway.tasks.spawn(boxed(async move {
            let Some(result) = over.run_until_cancelled(flight.land()).await else { return };
            let entry = flight.entry(&result, clock.now());
            let ActiveAttempt { pick, watch } = flight.into_active();
            watch.close();
            // Its client may have left at this moment.
            let _ = sender.send(Landed { result, pick, entry });
        }));
        Self { landing, done: None, stop: stop.drop_guard() }
    }

    /// Resolves where it failed, and never otherwise. Cancel-safe.
    pub(super) async fn failed(&mut self) -> Landed {
        if self.done.is_none()
            && let Ok(landed) = (&mut self.landing).await
        {
            if !landed.is_success() {
                return landed;
            }
            self.done = Some(landed);
        }
        std::future::pending().await
    }

    /// What it came to, if it has by now.
    pub(super) fn landed(&mut self) -> Option<Landed> {
        self.done.take().or_else(|| self.landing.try_recv().ok())
    }

    /// The decoding leg has spoken: what comes of this one its pool learns when it does.
    pub(super) fn finish(self, gateway: &Arc<Gateway>, dialect: Dialect) {
        let Self { landing, stop, .. } = self;
        let clock = gateway.clock;
        gateway.tasks.spawn(boxed(async move {
            // It has a deadline of its own.
            let landed = landing.await;
            drop(stop);
            if let Ok(Landed { result: Ok(UpstreamResponse::Buffered(answer)), mut pick, .. }) = landed
                && answer.head.status.is_success()
            {
                learn(&mut pick, &answer, dialect, clock.now());
            }
        }));
    }
}

/// A prompt is computed: the answer has its first token, with the engine's count of cached prompt tokens.
pub(super) fn learn(pick: &mut Pick, answer: &BufferedResponse, dialect: Dialect, now: Stamp) -> TokenCounts {
    pick.first_token(now);
    pick.answered(false, now);
    let tokens = answer.facts(dialect).tokens;
    pick.learn(tokens);
    tokens
}
