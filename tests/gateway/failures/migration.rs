//! Streams on a route with `migrate` whose replica breaks: the client gets one whole answer, or ends as elsewhere.

use std::time::Duration;

use serde_json::{Value, json};
use tokenway::config::Config;

use super::{CHAT, PATH, Pair, assert_broken};
use crate::support::client::Reply;
use crate::support::replica::{Gate, Probes, Replica, Step};
use crate::support::{Gateway, config, until, wire};

/// A pair on a route that migrates.
async fn pair(script: Vec<Step>) -> Pair {
    let migrating = |config: &mut Config| {
        config.routes[0].migrate = true;
        // A scrape that is refused is what tells of a process that is gone.
        config.pools[0].scrape_interval = Duration::from_millis(100);
    };
    Pair::start_with(migrating, script).await
}

/// One that migrates and asks for token counts.
fn counting(config: &mut Config) {
    config.routes[0].migrate = true;
    config.routes[0].ask_usage = true;
}

/// What a replica sends that continues: its own id, a role of its own.
fn continuing(texts: &[&str]) -> Vec<Step> {
    let own = |event: &str| event.replace("\"id\":\"c1\"", "\"id\":\"c2\"");
    wire::stream(wire::chat_events(texts).iter().map(|event| own(event)))
}

/// The answer that no client can tell from an unbroken one.
fn whole(texts: &[&str]) -> String {
    wire::chat_events(texts).concat()
}

fn migrations(gateway: &Gateway) -> u64 {
    gateway.sum("tokenway_migrations_total", &[]) as u64
}

fn sent(replica: &Replica) -> Value {
    serde_json::from_slice(&replica.received().last().unwrap().body).unwrap()
}

#[tokio::test]
async fn a_broken_stream_goes_on_at_another_replica_and_the_client_does_not_learn_of_it() {
    let half = |text: &str| wire::event(&text[..text.len() - 9]);
    let late_text = wire::content("\\n wor").replace("\"finish_reason\":null", "\"finish_reason\":\"abort\"");
    assert!(late_text.contains("abort"));
    let cases = [
        ("closed", vec![Step::Close]),
        ("reset", vec![Step::Tick, Step::Reset]),
        ("ended in order, but without its end", vec![Step::End]),
        ("closed inside an event", vec![half(&wire::content("!")), Step::Close]),
        ("engine died", wire::ending(wire::ENGINE_DEAD)),
        ("engine failed", wire::ending(wire::ENGINE_ERROR)),
        ("engine failed, in its old form", wire::ending(wire::FLAT_ERROR)),
        ("engine shut down", wire::ending(wire::ABORTED)),
        ("engine shut down, with text that it held back", wire::ending(late_text)),
        ("silent, and its process gone", vec![Step::StopListening, Step::Hang]),
    ];
    for (name, then) in cases {
        let begun = wire::begun_then("he", [wire::event(wire::content("llo\\n"))]);
        let pair = pair([begun, then].concat()).await;
        pair.good.next(continuing(&["\\n wor", "ld"]));
        let reply = pair.post(CHAT).await;
        // The white space at the break is said again, and left out.
        assert_eq!(reply.text(), whole(&["he", "llo\\n", " wor", "ld"]), "{name}");
        assert!(reply.body.is_complete, "{name}");
        assert_eq!((pair.good_requests(), migrations(&pair.gateway)), (1, 1), "{name}");
        let sent = sent(&pair.good);
        assert_eq!(sent["messages"][1], json!({"role": "assistant", "content": "hello"}), "{name}");
        assert_eq!(sent["continue_final_message"], true, "{name}");
        assert_eq!(sent["add_generation_prompt"], false, "{name}");
        assert_eq!(pair.gateway.ended("failed"), 0.0, "{name}: a request that was answered did not fail");
        assert!(!pair.gateway.page().contains("tokenway_retries_total{"), "{name}: it is no retry");
    }
}

/// As DeepSeek's in vLLM: as many tokens with `continue_final_message` as without.
#[tokio::test]
async fn a_chat_is_not_continued_behind_a_message_that_the_engine_ends() {
    let (replicas, mut config) = config::fresh::<2>().await;
    let ended = r#"{"count":9,"choices":[{"index":0,"text":"a","finish_reason":"length"}]}"#;
    for replica in &replicas {
        replica.probes(Probes::Says("application/json", ended));
        replica.next([wire::begun_then("he", []), vec![Step::Close]].concat());
    }
    config.routes[0].migrate = true;
    let gateway = Gateway::start(config).await;
    let reply = gateway.post(PATH, CHAT).await;
    assert!(reply.text().contains("error") && !reply.text().contains("[DONE]"), "{}", reply.text());
    assert_eq!((replicas[0].count() + replicas[1].count(), migrations(&gateway)), (1, 0));
}

/// The gaps before a break and the break itself are no other replica's.
#[tokio::test]
async fn the_gaps_of_a_broken_stream_are_those_of_the_replica_that_broke_it() {
    let begun = wire::begun_then("a", [wire::event(wire::content("b")), Step::Tick, Step::Close]);
    let pair = pair(begun).await;
    pair.good.next(continuing(&["c", "d", "e"]));
    assert_eq!(pair.post(CHAT).await.text(), whole(&["a", "b", "c", "d", "e"]));
    pair.gateway.idle().await;
    let gaps = |name: &str| {
        let of_it = format!("replica=\"{name}\"");
        pair.gateway.sum("tokenway_replica_inter_token_latency_seconds_count", &[&of_it])
    };
    // One of the other's is of an answer before.
    assert_eq!((gaps(&pair.bad.name()), gaps(&pair.good.name())), (2.0, 3.0));
}

#[tokio::test]
async fn a_stream_that_was_cut_behind_its_finish_reason_ends_without_another_replica() {
    for then in [vec![Step::Close], wire::ending(wire::ENGINE_DEAD)] {
        let pair = pair(wire::begun_then("x", [vec![wire::event(wire::FINISH)], then].concat())).await;
        let reply = pair.post(CHAT).await;
        assert_eq!((reply.text(), reply.body.is_complete), (&*whole(&["x"]), true));
        assert_eq!((pair.good_requests(), migrations(&pair.gateway)), (0, 0));
    }
}

/// An event with the tokens of its prompt and of its answer so far.
fn counted(event: &str, [prompt, n]: [u32; 2]) -> Step {
    let total = prompt + n;
    let usage = format!("\"prompt_tokens\":{prompt},\"total_tokens\":{total},\"completion_tokens\":{n}");
    wire::event(event.replace("]}\n", &format!("],\"usage\":{{{usage}}}}}\n")))
}

/// What follows the finish reason: two tokens to a prompt of five.
fn usage_and_end() -> String {
    let head = "{\"id\":\"c1\",\"model\":\"tiny\",\"object\":\"chat.completion.chunk\",\"choices\":[]";
    let usage = "\"usage\":{\"prompt_tokens\":5,\"total_tokens\":7,\"completion_tokens\":2}";
    format!("data: {head},{usage}}}\n\n{}", wire::DONE)
}

#[tokio::test]
async fn a_continued_stream_that_loses_its_end_as_well_counts_each_token_once() {
    let begun =
        vec![wire::sse_head(), wire::event(wire::ROLE), counted(&wire::content("a"), [5, 1]), Step::Close];
    let pair = Pair::start_with(counting, begun).await;
    let rest = [counted(&wire::content("b"), [6, 1]), counted(wire::FINISH, [6, 1]), Step::Close];
    pair.good.next([wire::sse_head(), wire::event(wire::ROLE)].into_iter().chain(rest).collect());
    let reply = pair.post(&CHAT.replace("\"stream\":true", COUNTED)).await;
    assert!(reply.text().ends_with(&usage_and_end()), "{}", reply.text());
    assert_eq!((reply.body.is_complete, migrations(&pair.gateway)), (true, 1));
}

const COUNTED: &str = "\"stream\":true,\"stream_options\":{\"include_usage\":true}";

#[tokio::test]
async fn a_stream_that_lost_only_its_end_has_the_usage_that_was_asked_for() {
    let events = [(wire::content("a"), 1), (wire::content("b"), 2)].map(|(event, n)| counted(&event, [5, n]));
    for (finish, limit) in [(Some([5, 2]), ""), (None, ",\"max_tokens\":2")] {
        let finish = finish.map(|counts| counted(wire::FINISH, counts));
        let script =
            [wire::sse_head(), wire::event(wire::ROLE)].into_iter().chain(events.clone()).chain(finish);
        let pair = Pair::start_with(counting, script.chain([Step::Close]).collect()).await;
        let reply = pair.post(&CHAT.replace("\"stream\":true", &format!("{COUNTED}{limit}"))).await;
        assert!(reply.text().ends_with(&usage_and_end()), "{}", reply.text());
        assert!(reply.body.is_complete && pair.good_requests() == 0);
    }
}

#[tokio::test]
async fn a_stream_that_was_cut_before_its_second_choice_is_no_whole_answer() {
    let first = "data: {\"id\":\"c1\",\"object\":\"text_completion\",\"model\":\"tiny\",\"choices\":[{\"index\":0,\
                 \"text\":\"one\",\"finish_reason\":\"length\"}]}\n\n";
    for (body, is_whole) in [
        (r#"{"model":"tiny","stream":true,"prompt":["a","b"],"max_tokens":1}"#, false),
        (r#"{"model":"tiny","stream":true,"prompt":"a","n":2,"max_tokens":1}"#, false),
        (r#"{"model":"tiny","stream":true,"prompt":"a","max_tokens":1}"#, true),
    ] {
        let pair = pair(vec![wire::sse_head(), wire::event(first), Step::Reset]).await;
        let reply = pair.gateway.post("/v1/completions", body).await;
        assert_eq!(reply.text().ends_with(wire::DONE) && reply.body.is_complete, is_whole, "{body}");
        if !is_whole {
            assert!(reply.text().contains("\"error\""), "{}", reply.text());
        }
    }
}

#[tokio::test]
async fn a_stream_that_lost_only_its_finish_has_no_token_more_than_was_asked_for() {
    let pair = pair(wire::begun_then("he", [wire::event(wire::content("llo")), Step::Close])).await;
    let reply = pair.post(&CHAT.replace("\"stream\":true", "\"stream\":true,\"max_tokens\":2")).await;
    let relayed = [wire::ROLE, &wire::content("he"), &wire::content("llo")].concat();
    let last = reply.text().strip_prefix(&*relayed).and_then(|last| last.strip_suffix(wire::DONE)).unwrap();
    let last: Value = serde_json::from_str(last.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!((&last["id"], &last["model"]), (&json!("c1"), &json!("tiny")));
    assert_eq!(last["choices"], json!([{"index": 0, "delta": {}, "finish_reason": "length"}]));
    assert!(reply.body.is_complete);
    assert_eq!(pair.good_requests(), 0);
    assert_eq!(pair.gateway.ended("failed"), 0.0);
    assert!(pair.gateway.page().contains("reason=\"length\""));
}

#[tokio::test]
async fn what_cannot_be_continued_ends_as_on_other_routes() {
    let call = wire::content("x").replace(
        "\"content\":\"x\"",
        "\"tool_calls\":[{\"index\":0,\"function\":{\"name\":\"f\",\"arguments\":\"{\"}}]",
    );
    let with = |field: &str| CHAT.replace("\"stream\":true", &format!("\"stream\":true,{field}"));
    let cases = [
        (
            "half a tool call",
            vec![wire::sse_head(), wire::event(wire::ROLE), wire::event(&call)],
            CHAT.to_owned(),
        ),
        ("two choices", wire::begun("x"), with("\"n\":2")),
        ("logprobs", wire::begun("x"), with("\"logprobs\":true")),
        ("reasoning that is not shown", wire::begun("x"), with("\"include_reasoning\":false")),
        ("a grammar", wire::begun("x"), with("\"response_format\":{\"type\":\"json_object\"}")),
    ];
    for (name, mut script, request) in cases {
        script.push(Step::Close);
        let pair = pair(script).await;
        let reply = pair.post(&request).await;
        let told = reply.text().rsplit("\n\n").nth(1).unwrap();
        assert!(told.contains("\"code\":\"replica_failed\""), "{name}: {told}");
        assert!(!reply.body.is_complete, "{name}");
        assert_eq!((pair.good_requests(), migrations(&pair.gateway)), (0, 0), "{name}");
    }
}

#[tokio::test]
async fn where_no_other_replica_takes_it_the_stream_ends_as_on_other_routes() {
    let cases = [
        ("refused", wire::json(400, r#"{"error":{"message":"no such template"}}"#)),
        ("dead as well", vec![Step::Close]),
        ("an error before any content", wire::stream([wire::ENGINE_ERROR, wire::DONE])),
    ];
    for (name, script) in cases {
        let pair = pair(wire::begun_then("x", [Step::Close])).await;
        pair.good.next(script);
        let reply = pair.post(CHAT).await;
        assert_broken(reply.text(), &[wire::ROLE, &wire::content("x")].concat(), "replica_failed", name);
        assert!(!reply.body.is_complete, "{name}");
        assert_eq!(migrations(&pair.gateway), 0, "{name}");
    }
}

#[tokio::test]
async fn limits_shrink_and_counts_add_up() {
    let pair = pair(wire::begun_then("he", [wire::event(wire::content("llo")), Step::Close])).await;
    let usage = wire::USAGE
        .replace("\"prompt_tokens\":9,\"total_tokens\":11", "\"prompt_tokens\":11,\"total_tokens\":13");
    let mut events = wire::chat_events(&[" wor", "ld"]);
    events.insert(4, usage);
    pair.good.next(wire::stream(events));
    let request = CHAT.replace(
        "\"stream\":true",
        "\"stream\":true,\"stream_options\":{\"include_usage\":true},\"max_tokens\":4,\"min_tokens\":1",
    );
    let reply = pair.post(&request).await;
    let sent = sent(&pair.good);
    assert_eq!((&sent["max_tokens"], &sent["min_tokens"]), (&json!(2), &json!(0)));
    let expected = "\"usage\":{\"prompt_tokens\":9,\"total_tokens\":13,\"completion_tokens\":4}";
    assert!(reply.text().contains(expected), "{}", reply.text());
    assert_eq!(reply.text().matches("[DONE]").count(), 1);
}

#[tokio::test]
async fn several_tokens_in_one_event_are_counted_and_the_client_sees_nothing_of_it() {
    let counted = |event: &str, prompt: u64, tokens: u64| {
        let usage = format!(
            "],\"usage\":{{\"prompt_tokens\":{prompt},\"total_tokens\":{},\"completion_tokens\":{tokens}}}}}",
            prompt + tokens
        );
        event.replace("]}", &usage)
    };
    let first =
        [counted(wire::ROLE, 9, 0), counted(&wire::content("he"), 9, 3), counted(&wire::content("y"), 9, 5)];
    let mut script = vec![wire::sse_head()];
    script.extend(first.iter().map(wire::event));
    script.push(Step::Close);
    let pair = Pair::start_with(counting, script).await;
    let last = wire::chat_events(&[" you"]);
    let mut then: Vec<String> = last
        .iter()
        .map(|event| if event.contains("[DONE]") { event.clone() } else { counted(event, 14, 2) })
        .collect();
    let at = then.len() - 1;
    then.insert(
        at,
        wire::USAGE
            .replace("\"prompt_tokens\":9,\"total_tokens\":11", "\"prompt_tokens\":14,\"total_tokens\":16"),
    );
    pair.good.next(wire::stream(&then));
    let reply = pair.post(&CHAT.replace("\"stream\":true", "\"stream\":true,\"max_tokens\":7")).await;
    assert_eq!(reply.text(), whole(&["he", "y", " you"]));
    let sent = sent(&pair.good);
    assert_eq!(sent["max_tokens"], 2, "of seven tokens five were told in two events");
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    assert_eq!(sent["stream_options"], options);
}

/// They cost vLLM a count of all tokens so far for each chunk, where it parses reasoning.
#[tokio::test]
async fn counts_of_every_chunk_are_not_asked_for_where_reasoning_cannot_be_continued() {
    let replica = Replica::start().await;
    let mut config = config::of(&[&replica]);
    counting(&mut config);
    let gateway = Gateway::start(config).await;
    let thought = wire::content("hm").replace("\"content\"", "\"reasoning\"");
    let reasoning =
        [wire::ROLE.to_owned(), thought, wire::content("so"), wire::FINISH.into(), wire::DONE.into()];
    let plain = wire::chat_events(&["so"]);
    let hidden = CHAT.replace("\"stream\":true", "\"stream\":true,\"include_reasoning\":false");
    let text = ("/v1/completions", r#"{"model":"tiny","stream":true,"prompt":"a"}"#);
    let cases = [
        ("the client wants none", (PATH, &*hidden), &*plain, false),
        ("the engine has shown none", (PATH, CHAT), &reasoning, true),
        ("it has", (PATH, CHAT), &plain, false),
        ("completions have none", text, &plain, true),
    ];
    for (name, (path, body), events, is_running) in cases {
        replica.next(wire::stream(events));
        let reply = gateway.post(path, body).await;
        assert_eq!(reply.text(), events.concat(), "{name}");
        let options = &sent(&replica)["stream_options"];
        assert_eq!(options["include_usage"], true, "{name}");
        assert_eq!(options["continuous_usage_stats"] == true, is_running, "{name}");
    }
}

#[tokio::test]
async fn completions_go_on_from_a_longer_prompt() {
    let text = |id: &str, text: &str, finish: &str| {
        format!(
            "data: {{\"id\":\"{id}\",\"object\":\"text_completion\",\"model\":\"tiny\",\"choices\":[{{\"index\":0,\
             \"text\":\"{text}\",\"finish_reason\":{finish}}}]}}\n\n"
        )
    };
    let first = [text("c1", "he", "null"), text("c1", "llo ", "null")];
    let then = [text("c2", "world", "\"length\""), wire::DONE.to_owned()];
    let mut script = vec![wire::sse_head()];
    script.extend(first.iter().map(wire::event));
    script.push(Step::Close);
    let pair = pair(script).await;
    pair.good.next(wire::stream(&then));
    let reply = pair
        .gateway
        .post("/v1/completions", r#"{"model":"tiny","stream":true,"prompt":"say: ","max_tokens":3}"#)
        .await;
    assert_eq!(reply.text(), [first.concat(), then.concat().replace("c2", "c1")].concat());
    let sent = sent(&pair.good);
    assert_eq!((&sent["prompt"], &sent["max_tokens"]), (&json!("say: hello "), &json!(1)));
}

#[tokio::test]
async fn a_stream_moves_three_times_at_most() {
    let broken = |text: &str| wire::begun_then(text, [Step::Close]);
    let ([one, two], gateway) = Gateway::before(|config| config.routes[0].migrate = true).await;
    for replica in [&one, &two] {
        replica.always(broken("x"));
    }
    let reply = gateway.post(PATH, CHAT).await;
    let relayed = [wire::ROLE, &wire::content("x").repeat(4)].concat();
    assert_broken(reply.text(), &relayed, "replica_failed", "the fourth break");
    assert_eq!((one.count() + two.count(), migrations(&gateway)), (4, 3));
    gateway.idle().await;
}

#[tokio::test]
async fn a_client_that_leaves_while_a_replica_is_looked_for_leaves_nothing_behind() {
    let pair = pair(wire::begun_then("x", [Step::Close])).await;
    pair.good.next(vec![wire::sse_head(), wire::event(wire::ROLE), Step::Hang]);
    let mut client = pair.gateway.begun(PATH, CHAT).await;
    client.read_until("\"x\"").await;
    pair.good.got(2).await;
    drop(client);
    pair.good.abandoned(1).await;
    pair.gateway.idle().await;
    assert_eq!((pair.gateway.ended("canceled"), pair.gateway.ended("failed")), (1.0, 0.0));
}

#[tokio::test]
async fn half_an_event_is_held_back_until_it_is_whole() {
    let gate = Gate::new();
    let (first, second) = (wire::content("y"), wire::content("z"));
    let (head, tail) = second.split_at(second.len() / 2);
    let script = wire::begun_then(
        "x",
        [
            wire::event(first + head),
            Step::Wait(gate.clone()),
            wire::event(tail),
            wire::event(wire::FINISH),
            wire::event(wire::DONE),
            Step::End,
        ],
    );
    let pair = pair(script).await;
    let mut client = pair.gateway.begun(PATH, CHAT).await;
    let seen = client.read_until("\"y\"").await;
    assert!(seen.ends_with(b"}\n\n"), "{}", String::from_utf8_lossy(&seen));
    gate.cancel();
    let rest = client.rest().await;
    assert!(rest.is_complete);
    assert_eq!([seen, rest.bytes].concat(), whole(&["x", "y", "z"]).as_bytes());
}

#[tokio::test]
async fn the_gap_across_the_break_is_a_gap_and_the_first_token_stays_the_first() {
    let pair = pair(wire::begun_then("x", [Step::Close])).await;
    pair.good.next(vec![
        wire::sse_head(),
        Step::Tick,
        Step::Tick,
        wire::event(wire::content("y")),
        wire::event(wire::FINISH),
        wire::event(wire::DONE),
        Step::End,
    ]);
    let reply: Reply = pair.post(CHAT).await;
    assert_eq!(reply.text(), whole(&["x", "y"]));
    let metric = |family: &str| pair.gateway.sum(family, &[]);
    until("the gap is observed", || metric("tokenway_inter_chunk_latency_seconds_count") == 2.0).await;
    // One of the request that found out whose turn it was, one across the break.
    assert!(metric("tokenway_inter_chunk_latency_seconds_sum") >= Duration::from_millis(20).as_secs_f64());
    assert_eq!(metric("tokenway_time_to_first_token_seconds_count"), 2.0);
}
