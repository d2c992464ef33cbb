//! What answers counted, for who follows the engines' KV events: which prompt went where, and how many tokens were found.
//!
//! As with [`super::notice`], a full queue drops and no request waits. Nothing is copied unless there is a listener.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use super::prefix_index::{End, Exact, Turn};
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
    /// What it held of the turn before.
    pub before: Option<End>,
    /// It held none of this turn: the prompt is no repeated one.
    pub is_new: bool,
    /// Tokens of the prompt, by the engine's count.
    pub prompt: Tokens,
    /// Those found cached, where the engine reports that.
    pub cached: Option<Tokens>,
    /// Tokens of the answer.
    pub output: Tokens,
}

impl PromptReport {
    /// What its replica holds of it and of its answer; `None` of counts beyond reason.
    pub fn end(&self) -> Option<End> {
        let (prompt, output) = (within(self.prompt)?, within(self.output)?);
        // Of the last token there is no KV.
        let reach = (prompt + output).saturating_sub(1);
        Some(End { blocks: u32::try_from(self.chain.len()).ok()?, prompt, reach })
    }

    /// Tokens that were found cached, where the engine reports as many as there can be.
    pub fn found(&self) -> Option<u32> {
        self.cached.filter(|cached| *cached <= self.prompt).and_then(within)
    }
}

fn within(tokens: Tokens) -> Option<u32> {
    u32::try_from(tokens.0).ok().filter(|tokens| *tokens < MAX_TOKENS)
}

/// No prompt is longer.
const MAX_TOKENS: u32 = 1 << 25;

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

    /// The answer has ended. What its replica holds of it counts at once: the next turn may come before the queue is read.
    pub(super) fn ended(&mut self, exact: &Exact) {
        let report = &mut self.report;
        if report.prompt > Tokens(0)
            && exact.is_followed(report.slot)
            && let Some(end) = report.end()
        {
            report.before = report.turn.continues.and_then(|whole| exact.end(report.slot, whole));
            report.is_new = exact.end(report.slot, report.turn.whole).is_none();
            exact.set_end(report.slot, report.turn.whole, Some(end));
        }
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
