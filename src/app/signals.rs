//! The signals of a server: SIGTERM and SIGINT drain, SIGHUP reloads.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM: drain, after the delay in which load balancers notice.
    Terminate,
    /// SIGINT: drain without the delay.
    Interrupt,
    /// SIGHUP: reload, reopen the access log.
    Reload,
}

/// Takes the three signals from now on.
///
/// # Errors
/// When a handler cannot be installed.
pub fn listen() -> io::Result<mpsc::Receiver<Signal>> {
    let (tell, told) = mpsc::channel(8);
    let kinds = [
        (SignalKind::terminate(), Signal::Terminate),
        (SignalKind::interrupt(), Signal::Interrupt),
        (SignalKind::hangup(), Signal::Reload),
    ];
    for (kind, means) in kinds {
        let mut stream = signal(kind)?;
        let tell = tell.clone();
        #[expect(
            clippy::disallowed_methods,
            reason = "lives as long as the process and has nothing to finish"
        )]
        tokio::spawn(async move {
            while stream.recv().await.is_some() {
                if tell.send(means).await.is_err() {
                    return;
                }
            }
        });
    }
    Ok(told)
}
