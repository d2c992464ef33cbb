//! The generating endpoints: from a checked request to a stream or a whole answer.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::request::dialect::Dialect;
use crate::simulate::driver::Ticket;
use crate::simulate::faults::{Applied, FaultKind};
use crate::simulate::replica::Replica;

use super::answer::{Answer, Limits, Render};
use super::ask::Ask;
use super::body::{Live, Parts};
use super::error::ApiError;
use super::{Reply, chat, completions, messages, responses};

/// Serves one generating request.
pub(super) async fn answer(
    replica: &Arc<Replica>,
    dialect: Dialect,
    body: &Map<String, Value>,
    request: (&str, Applied),
) -> Result<Reply, ApiError> {
    let (request_id, faults) = request;
    let ask = Ask::parse(dialect, body, &replica.config)?;
    let answer = Answer::new(response_id(dialect, request_id), replica.unix_time(), ask, limits(replica));
    let ticket = submit(replica, &answer)?;
    if answer.ask.is_stream {
        let render = renderer(dialect, &answer);
        let replica = replica.clone();
        return Ok(Reply::Stream(Box::new(Live::new(Parts {
            replica,
            ticket,
            answer,
            render,
            dialect,
            faults,
        }))));
    }
    let answer = whole(replica, ticket, answer, &faults).await?;
    Ok(Reply::Json(match dialect {
        Dialect::Completions => completions::unary(&answer),
        Dialect::Responses => responses::unary(&answer),
        Dialect::Messages => messages::unary(&answer),
        _ => chat::unary(&answer),
    }))
}

fn limits(replica: &Replica) -> Limits {
    Limits {
        seed: replica.config.seed,
        context_length: replica.config.context_length(),
        block_size: replica.config.engine.block_size.max(1),
    }
}

fn submit(replica: &Arc<Replica>, answer: &Answer) -> Result<Ticket, ApiError> {
    replica.driver.submit(&answer.jobs()).map_err(|unservable| ApiError::internal(&unservable.to_string()))
}

fn renderer(dialect: Dialect, answer: &Answer) -> Box<dyn Render> {
    match dialect {
        Dialect::Completions => Box::new(completions::CompletionStream::new(answer)),
        Dialect::Responses => Box::new(responses::ResponseStream::default()),
        Dialect::Messages => Box::new(messages::MessageStream::default()),
        _ => Box::new(chat::ChatStream::new(answer)),
    }
}

fn response_id(dialect: Dialect, request_id: &str) -> String {
    match dialect {
        Dialect::Completions => format!("cmpl-{request_id}"),
        Dialect::Responses => format!("resp_{request_id}"),
        _ => format!("chatcmpl-{request_id}"),
    }
}

/// Waits for the last token.
async fn whole(
    replica: &Arc<Replica>,
    mut ticket: Ticket,
    mut answer: Answer,
    faults: &Applied,
) -> Result<Answer, ApiError> {
    if faults.of(FaultKind::Stall).is_some() {
        return std::future::pending().await;
    }
    if faults.of(FaultKind::EngineDeath).is_some() {
        replica.die();
    }
    while !answer.is_complete() {
        let Some(event) = ticket.events.recv().await else {
            if replica.is_dead() {
                return Err(ApiError::engine_dead());
            }
            // The process is gone, and the connection with it.
            return std::future::pending().await;
        };
        if let Some(slow) = faults.of(FaultKind::Slow) {
            tokio::time::sleep_until(ticket.due(&event, slow.factor)).await;
        }
        let place = ticket.place(event.job);
        answer.note(place, &event);
    }
    Ok(answer)
}
