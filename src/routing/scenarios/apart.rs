//! Prompts computed by another pool: what a decoding replica is charged, and what it learns.

use super::*;
use crate::config::ItlBounds;
use crate::record::SloBounds;

/// A tenth of a second, and 20 µs a token.
fn transfer(_: u64, tokens: Tokens) -> f64 {
    0.1 + tokens.0 as f64 * 2e-5
}

fn aim() -> Aim {
    let tpot = Some(Duration::from_millis(50));
    Aim { slo: SloBounds { tpot, ..SloBounds::default() }, ..Aim::default() }
}

/// Cost in seconds of both ways, with an idle prefill replica.
fn ways(decode: &mut Fleet, text: &Text) -> (f64, f64) {
    decode.aim = aim();
    let together = decode.decide(text).unwrap().terms.cost.total();
    decode.transfer = Some(transfer);
    let there = decode.decide(text).unwrap().terms.cost.total();
    decode.transfer = None;
    let prefill = Fleet::experienced(1).decide(text).unwrap().terms.cost.total();
    (together, prefill + there)
}

#[test]
fn a_document_leaves_streams_alone_and_everything_else_stays_in_one_place() {
    let (document, chat) = (Text::session(1, 0, 128), Text::session(2, 0, 2));
    let mut idle = Fleet::experienced(1);
    let mut busy = Fleet::experienced(1);
    let _streams = busy.streams(0, 12, 1);
    let (together, apart) = ways(&mut busy, &document);
    assert!(apart < 0.5 * together, "{apart} {together}: twelve streams would stall");
    let rest = [ways(&mut idle, &document), ways(&mut idle, &chat), ways(&mut busy, &chat)];
    for (together, apart) in rest {
        assert!(together < apart, "{together} {apart}");
    }
    // The warm prefix makes it a short prompt.
    busy.dispatcher.index.insert(0, &Text::session(1, 0, 126).prompt());
    let (together, apart) = ways(&mut busy, &document);
    assert!(together < apart, "{together} {apart}");
}

#[test]
fn kv_comes_to_where_less_of_it_is_lacking() {
    let mut fleet = Fleet::experienced(4);
    fleet.transfer = Some(|_, tokens| tokens.0 as f64 * 1e-4);
    let text = Text::session(1, 0, 64);
    fleet.dispatcher.index.insert(2, &Text::session(1, 0, 60).prompt());
    let decision = fleet.decide(&text).unwrap();
    assert_eq!((decision.slot, decision.terms.work), (2, Work::default()));
    assert!((decision.terms.transfer - 0.0266).abs() < 1e-3, "{}", decision.terms.transfer);
    assert!(decision.predicted_ttft.unwrap() >= Duration::from_millis(26));
}

#[test]
fn what_waits_for_kv_is_no_queue_and_teaches_nothing() {
    let mut fleet = Fleet::experienced(1);
    let text = Text::session(1, 0, 4);
    let before = fleet.decide(&text).unwrap().predicted_ttft.unwrap();
    fleet.transfer = Some(transfer);
    let (_, mut waits) = fleet.dispatch(&Text::session(7, 0, 200));
    assert_eq!(fleet.targets[0].load.view().awaiting, 1, "it counts");
    fleet.transfer = None;
    fleet.now = fleet.now.after(Duration::from_secs(20));
    let beside = fleet.decide(&text).unwrap().predicted_ttft.unwrap();
    assert!(beside < before + Duration::from_millis(40), "{beside:?} {before:?}");
    waits.first_token(fleet.now);
    waits.prompt_reported(Some(Tokens(12_810)), Some(Tokens(0)));
    waits.served_whole(fleet.now, Tokens(9));
    fleet.refresh();
    assert_eq!(fleet.targets[0].load.view().decoding(), 1, "it is decoded");
    let after = fleet.decide(&Text::session(7, 0, 200)).unwrap();
    assert!(after.hit > Tokens(12_000), "its KV is here now, whatever the engine counts: {:?}", after.hit);
    drop(waits);
    let again = fleet.decide(&text).unwrap().predicted_ttft.unwrap();
    assert!(again < before + Duration::from_millis(5), "{again:?} {before:?}");
}

#[test]
fn a_prefill_that_is_longer_than_the_bound_on_gaps_is_charged_for_each_stream_that_it_stalls() {
    let (document, chat) = (Text::session(1, 0, 128), Text::session(2, 0, 2));
    let mut fleet = Fleet::experienced(1);
    let _streams = fleet.streams(0, 12, 200);
    let stalled = |fleet: &Fleet, text| fleet.decide(text).unwrap().terms.stalled;
    assert_eq!(stalled(&fleet, &document), 0.0, "no bound");
    let itl = ItlBounds::new([None, None, None, Some(Duration::from_millis(200))]);
    fleet.aim = Aim { slo: SloBounds { itl, ..SloBounds::default() }, ..Aim::default() };
    // Answers of 200 tokens may have two longer gaps: each is a third of what a stream has.
    let streams = stalled(&fleet, &document);
    assert!((3.5..4.5).contains(&streams), "{streams}");
    assert_eq!(stalled(&fleet, &chat), 0.0);
}
