//! The signals of a server: SIGTERM and SIGINT drain, SIGHUP reloads.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::background::boxed;

/// A signal by its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM: drain, after the delay in which load balancers notice.
    Terminate,
    /// SIGINT: drain without the delay.
    Interrupt,
    /// SIGHUP: reload, reopen the access log.
    Reload,
}

/// Receives the three signals from now on, in place of the default actions.
pub fn listen() -> io::Result<mpsc::Receiver<Signal>> {
    let (sender, receiver) = mpsc::channel(8);
    let kinds = [
        (SignalKind::terminate(), Signal::Terminate),
        (SignalKind::interrupt(), Signal::Interrupt),
        (SignalKind::hangup(), Signal::Reload),
    ];
    for (kind, meaning) in kinds {
        let mut stream = signal(kind)?;
        let sender = sender.clone();
        #[expect(
            clippy::disallowed_methods,
            reason = "lives as long as the process and has nothing to finish"
        )]
        tokio::spawn(boxed(async move {
            while stream.recv().await.is_some() {
                if sender.send(meaning).await.is_err() {
                    return;
                }
            }
        }));
    }
    Ok(receiver)
}
