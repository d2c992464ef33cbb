//! The generating endpoints: from a checked request to a stream or a whole answer.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::server::driver::Submission;
use crate::server::faults::{Applied, FaultKind};
use crate::server::replica::Replica;

use super::Reply;
use super::api::Api;
use super::ask::Ask;
use super::body::{Live, Stream};
use super::chat::ChatRender;
use super::completions::CompletionRender;
use super::error::ApiError;
use super::generation::{Generation, Render};
use super::messages::MessageRender;
use super::responses::ResponseRender;
use super::rooms;
use super::transfer::{self, Transfer};

pub(super) async fn serve(
    replica: &Arc<Replica>,
    api: Api,
    body: &Map<String, Value>,
    request_id: &str,
    faults: Applied,
) -> Result<Reply, ApiError> {
    let ask = Ask::parse(api, body, &replica.config)?;
    let id = response_id(api, request_id);
    let mut generation = Generation::new(id, replica.unix_time(), ask, &replica.config);
    let transfer = Transfer::of(body, replica.port());
    if let Err(error) = transfer::fetch(replica, &mut generation, transfer, &faults).await {
        if !generation.ask.is_stream {
            return Err(error);
        }
        let mut render = render(api, &generation);
        return Ok(Reply::Events(transfer::lost_stream(api, &generation, &mut *render, &error)));
    }
    let submission = replica.driver.submit(generation.jobs());
    let submission = submission.map_err(|unservable| ApiError::internal(&unservable.to_string()))?;
    let render = render(api, &generation);
    if generation.ask.is_stream {
        let replica = replica.clone();
        let stream = Stream { replica, submission, generation, render, api, faults };
        return Ok(Reply::Stream(Box::new(Live::new(stream))));
    }
    let generation = finish(replica, submission, generation, &faults).await?;
    if let Transfer::Host(room) = transfer {
        rooms::open(room);
    }
    let answer = render.whole(&generation);
    Ok(Reply::Json(match transfer {
        Transfer::Keep => transfer::offer(replica, &generation, &answer),
        _ => answer,
    }))
}

fn render(api: Api, generation: &Generation) -> Box<dyn Render> {
    match api {
        Api::Completions => Box::new(CompletionRender::new(generation)),
        Api::Responses => Box::new(ResponseRender::default()),
        Api::Messages => Box::new(MessageRender::default()),
        _ => Box::new(ChatRender::new(generation)),
    }
}

fn response_id(api: Api, request_id: &str) -> String {
    match api {
        Api::Completions => format!("cmpl-{request_id}"),
        Api::Responses => format!("resp_{request_id}"),
        _ => format!("chatcmpl-{request_id}"),
    }
}

/// Waits for the last token.
async fn finish(
    replica: &Arc<Replica>,
    mut submission: Submission,
    mut generation: Generation,
    faults: &Applied,
) -> Result<Generation, ApiError> {
    if faults.of(FaultKind::Stall).is_some() {
        return std::future::pending().await;
    }
    if faults.of(FaultKind::EngineDeath).is_some() {
        replica.die();
    }
    while !generation.is_complete() {
        let Some(event) = submission.events.recv().await else {
            if replica.is_dead() {
                return Err(ApiError::engine_dead());
            }
            // The process is gone, and the connection with it.
            return std::future::pending().await;
        };
        if let Some(slow) = faults.of(FaultKind::Slow) {
            tokio::time::sleep_until(submission.due(&event, slow.factor)).await;
        }
        let place = submission.place(event.job);
        generation.note(place, &event);
    }
    Ok(generation)
}
