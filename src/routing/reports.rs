//! What answers counted, for who follows the engines' KV events: which prompt went where, and how many tokens were found.
//!
//! As with [`super::notice`], a full queue drops and no request waits. Nothing is copied unless there is a listener.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use super::prefix_index::Turn;
use super::{Candidate, Prompt};
use crate::clock::Stamp;
use crate::units::Tokens;

/// One prompt that an engine answered.
#[derive(Clone, Debug, Default)]
pub struct PromptReport {
    /// Slot of the replica.
    pub slot: usize,
    /// When it was sent.
    pub sent: Stamp,
    /// Hashes of its blocks.
    pub chain: Box<[u64]>,
    /// Canonical bytes.
    pub bytes: u64,
    /// Among the turns of its conversation.
    pub turn: Turn,
    /// Leading blocks that the replica was believed to hold.
    pub blocks: usize,
    /// Tokens of the prompt, by the engine's count.
    pub prompt: Tokens,
    /// Those found cached, where the engine reports that.
    pub cached: Option<Tokens>,
    /// Tokens of the answer.
    pub output: Tokens,
}

/// The end of a bounded queue of reports.
pub type Reports = SyncSender<PromptReport>;

/// A report that is put into the queue when this is dropped, if the engine counted.
#[derive(Debug)]
pub(super) struct Pending {
    reports: Arc<Reports>,
    pub(super) report: PromptReport,
}

impl Pending {
    /// A prompt goes to a replica.
    pub(super) fn sent(
        reports: Arc<Reports>,
        to: &Candidate<'_>,
        prompt: &Prompt<'_>,
        turn: Turn,
        at: Stamp,
    ) -> Self {
        let report = PromptReport {
            slot: to.slot,
            sent: at,
            chain: prompt.chain.into(),
            bytes: prompt.bytes,
            turn,
            blocks: to.blocks,
            ..PromptReport::default()
        };
        Self { reports, report }
    }

    pub(super) fn counted(&mut self, prompt: Option<Tokens>, cached: Option<Tokens>) {
        self.report.prompt = prompt.unwrap_or_default();
        self.report.cached = cached;
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.report.prompt > Tokens(0) {
            let chain = std::mem::take(&mut self.report.chain);
            let _ = self.reports.try_send(PromptReport { chain, ..self.report.clone() });
        }
    }
}
