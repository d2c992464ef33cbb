use super::*;
use crate::clock::millis as ms;
use crate::routing::{EnginePage, Target};

pub(super) fn placed(at_ms: u64, tokens: u64) -> Placement {
    let at = ms(at_ms);
    Placement {
        at,
        work: Work::of(Tokens(tokens), Tokens(0)),
        prompt: Tokens(tokens),
        is_stream: true,
        ..Placement::default()
    }
}

fn counts(load: &ReplicaLoad) -> (u64, u64, u64) {
    let view = load.view();
    (view.inflight, view.awaiting, view.waiting.tokens)
}

/// 100 µs a token.
fn refresh(load: &ReplicaLoad, at_ms: u64) -> Refreshed {
    let survival = hazard::lengths::Lengths::default().survival();
    let seconds = |work: &Work| work.tokens as f64 * 1e-4;
    load.refresh(ms(at_ms), &Known { step: 0.02, per_event: 1.0, survival: &survival, seconds: &seconds })
}

/// Tokens of the prompts that a refresh learns from.
fn learned(load: &ReplicaLoad, at_ms: u64) -> Vec<u64> {
    refresh(load, at_ms).samples.iter().map(|sample| sample.work.tokens).collect()
}

/// Prompts of so many tokens that are sent together at 100 ms, and when each has its first token.
fn answered<const N: usize>(load: &Arc<ReplicaLoad>, prompts: [(u64, u64); N]) -> Vec<LoadGuard> {
    let mut guards = prompts.map(|(tokens, _)| LoadGuard::reserve(load, placed(100, tokens)));
    for (guard, (_, at)) in guards.iter_mut().zip(prompts) {
        guard.first_token(ms(at));
    }
    guards.into()
}

#[test]
fn what_a_decision_reads_is_two_cache_lines() {
    assert_eq!(std::mem::offset_of!(ReplicaLoad, refreshed), 128);
}

#[test]
fn a_request_is_alone_until_another_is_sent_there_or_where_none_was_left() {
    let load = ReplicaLoad::new();
    let first = LoadGuard::reserve(&load, placed(0, 700));
    assert!(first.is_alone());
    let second = LoadGuard::reserve(&load, placed(1, 50));
    assert_eq!([&first, &second].map(LoadGuard::is_alone), [false; 2]);
    drop(second);
    assert!(!first.is_alone(), "for a while it was not");
    drop(first);
    let past = LoadGuard::reserve(&load, Placement { is_past_engine: true, ..placed(2, 50) });
    assert!(LoadGuard::reserve(&load, placed(2, 50)).is_alone(), "beside one that no engine computes");
    drop(past);
}

#[test]
fn counts_from_the_decision_and_gives_back_in_two_steps() {
    let load = ReplicaLoad::new();
    let mut first = LoadGuard::reserve(&load, placed(0, 700));
    let second = LoadGuard::reserve(&load, placed(0, 50));
    assert_eq!(counts(&load), (2, 2, 750));
    first.first_token(ms(9));
    assert_eq!(counts(&load), (2, 1, 50));
    assert_eq!((load.view().decoding(), load.view().context), (1, 701));
    first.first_token(ms(10));
    assert_eq!(counts(&load), (2, 1, 50), "a second first token changes nothing");
    drop(second);
    assert_eq!(counts(&load), (1, 0, 0), "a request without any token releases both");
    drop(first);
    let LoadView { head_since, .. } = load.view();
    assert_eq!(load.view(), LoadView { head_since, ..LoadView::default() });
}

#[test]
fn the_head_of_the_queue_is_known_and_since_when_it_is_computed() {
    let load = ReplicaLoad::new();
    let mut first = LoadGuard::reserve(&load, placed(100, 700));
    let _second = LoadGuard::reserve(&load, placed(120, 50));
    assert_eq!((load.view().head.tokens, load.view().head_since), (700, ms(100)));
    first.first_token(ms(200));
    assert_eq!((load.view().head.tokens, load.view().head_since), (50, ms(200)));
}

#[test]
fn what_waits_when_a_step_begins_is_computed_in_it_as_far_as_it_fits() {
    let load = ReplicaLoad::new();
    let mut first = LoadGuard::reserve(&load, placed(100, 700));
    let _together: Vec<_> =
        [50, 60, 4000].map(|tokens| LoadGuard::reserve(&load, placed(150, tokens))).into();
    assert_eq!(load.view().head.tokens, 700, "they came when it was under way");
    first.first_token(ms(200));
    let _later = LoadGuard::reserve(&load, placed(220, 70));
    assert_eq!((load.view().head.tokens, load.view().head_since), (110, ms(200)));
}

#[test]
fn the_time_between_two_first_tokens_is_what_the_second_prompt_took() {
    let load = ReplicaLoad::new();
    drop(answered(&load, [(700, 200), (50, 300), (60, 301), (900, 500)]));
    let samples = refresh(&load, 600).samples;
    let seen: Vec<_> = samples.iter().map(|l| (l.work.tokens, l.busy.as_millis(), l.was_idle)).collect();
    assert_eq!(seen, [(700, 100, true), (110, 101, false), (900, 199, false)]);
}

#[test]
fn what_was_sent_at_an_unknown_time_takes_its_place_and_teaches_nothing() {
    let load = ReplicaLoad::new();
    let mut own = LoadGuard::reserve(&load, Placement { is_untimed: true, ..placed(100, 700) });
    assert_eq!(counts(&load), (1, 1, 700));
    own.first_token(ms(101));
    assert_eq!(counts(&load), (1, 0, 0));
    drop(own);
    drop(answered(&load, [(300, 400)]));
    assert_eq!(learned(&load, 600), [300]);
}

#[test]
fn what_is_answered_without_the_engine_is_in_flight_and_disturbs_nothing() {
    let load = ReplicaLoad::new();
    let first = LoadGuard::reserve(&load, placed(100, 700));
    let mut past = LoadGuard::reserve(&load, Placement { is_past_engine: true, ..placed(110, 0) });
    assert_eq!((counts(&load), load.own()), ((1, 1, 700), 2));
    past.computed(Work::of(Tokens(9), Tokens(0)));
    past.first_token(ms(120));
    assert_eq!(past.overdue(ms(130)), None);
    drop(past);
    assert_eq!((counts(&load), load.own()), ((1, 1, 700), 1));
    drop(first);
    drop(answered(&load, [(300, 400)]));
    drop(LoadGuard::reserve(&load, Placement { is_past_engine: true, ..placed(410, 0) }));
    drop(answered(&load, [(500, 600)]));
    assert_eq!(learned(&load, 900), [500]);
}

#[test]
fn a_lesson_waits_until_its_answers_have_told_what_was_computed() {
    let load = ReplicaLoad::new();
    let mut guards = answered(&load, [(7000, 200), (500, 201), (9000, 500), (700, 600)]);
    let learned = |at| learned(&load, at);
    assert_eq!(learned(650), [700], "it took longer than expected, and all others go on");
    guards[0].computed(Work::of(Tokens(2000), Tokens(5000)));
    assert!(learned(700).is_empty(), "the other one of its step goes on");
    drop(guards.remove(1));
    assert_eq!(learned(800), [2500]);
    assert!(learned(10_500).is_empty());
    assert_eq!(learned(10_501), [9000], "a long answer is not waited for");
    guards[1].computed(Work::default());
    drop(guards);
    assert!(learned(11_000).is_empty(), "each is learned once");
}

#[test]
fn what_media_took_is_learned_once_their_tokens_were_counted() {
    let load = ReplicaLoad::new();
    let images = [9000, 15_000].map(|at| {
        let mut guard = LoadGuard::reserve(&load, Placement { has_media: true, ..placed(at - 5000, 100) });
        guard.first_token(ms(at));
        guard
    });
    assert!(refresh(&load, 15_100).samples.is_empty(), "both took far longer than expected");
    images[0].computed(Work::of(Tokens(3000), Tokens(0)));
    drop(images);
    assert_eq!(learned(&load, 15_200), [3000]);
}

#[test]
fn an_event_of_several_tokens_is_paced_by_its_tokens() {
    let load = ReplicaLoad::new();
    let mut guard = LoadGuard::reserve(&load, placed(0, 100));
    guard.first_token(ms(100));
    guard.progress(11, ms(700));
    let survival = hazard::lengths::Lengths::default().survival();
    let found =
        load.refresh(ms(700), &Known { step: 0.02, per_event: 4.0, survival: &survival, seconds: &|_| 0.0 });
    assert!((found.paces[0].per_token - 0.015).abs() < 1e-9, "{:?}", found.paces);
    assert_eq!(load.view().context, 144);
}

#[test]
fn a_request_that_is_counted_before_the_head_is_known_makes_no_old_head() {
    let view = LoadView { inflight: 1, awaiting: 1, ..LoadView::default() };
    assert_eq!(view.head_age(ms(3_600_000)), 0.0);
    assert!((LoadView { head_since: ms(100), ..view }.head_age(ms(600)) - 0.5).abs() < 1e-9);
}

#[test]
fn answers_of_a_few_tokens_teach_a_pace_together() {
    let load = ReplicaLoad::new();
    let mut paces = Vec::new();
    for n in 0..6 {
        let at = 1_000 * n;
        let mut guard = LoadGuard::reserve(&load, placed(at, 100));
        guard.first_token(ms(at + 10));
        guard.progress(5, ms(at + 10 + 4 * 200));
        drop(guard);
        paces.extend(refresh(&load, at + 900).paces.iter().map(|pace| (pace.per_token * 1e3).round()));
    }
    assert_eq!(paces, [200.0; 3], "eight gaps each");
}

#[test]
fn a_refresh_learns_the_pace_and_what_a_stall_would_do() {
    let load = ReplicaLoad::new();
    let tpot = Some(Duration::from_millis(50));
    let mut guard = LoadGuard::reserve(&load, Placement { tpot, ..placed(0, 100) });
    guard.first_token(ms(100));
    guard.progress(11, ms(300));
    assert!(load.is_stale(ms(300)));
    let found = refresh(&load, 300);
    assert!(!load.is_stale(ms(340)) && load.is_stale(ms(350)));
    assert!((found.paces[0].per_token - 0.02).abs() < 1e-9 && found.paces[0].context == 111);
    assert!(load.harm(0.0, 5.0) > 0.1);
    drop(guard);
    refresh(&load, 320);
    assert!(load.harm(0.0, 5.0).abs() < 1e-9);
    assert!(!load.is_stale(ms(900)), "an idle replica is left alone");
}

#[test]
fn a_stream_that_has_just_begun_is_never_out_of_sight() {
    let load = ReplicaLoad::new();
    let tpot = Some(Duration::from_millis(50));
    let place = |at| LoadGuard::reserve(&load, Placement { tpot, ..placed(at, 100) });
    let (mut first, mut second) = (place(0), place(0));
    assert_eq!(load.view().bounded, 2);
    first.first_token(ms(100));
    second.first_token(ms(100));
    assert_eq!((load.view().awaiting, load.view().bounded), (0, 2), "no curve knows them yet");
    drop(first);
    assert_eq!(load.view().bounded, 1, "it ended before any refresh");
    refresh(&load, 105);
    assert_eq!(load.view().bounded, 0);
    assert!(load.harm(0.0, 5.0) > 0.0, "the curve has the other one");
    drop(second);
    assert_eq!(load.view().bounded, 0);
}

#[test]
fn an_answer_without_a_stream_does_not_hold_up_the_queue_until_its_end() {
    let load = ReplicaLoad::new();
    let place = |tokens| LoadGuard::reserve(&load, Placement { is_stream: false, ..placed(0, tokens) });
    let (_overtaken, mut stream) = (place(1000), LoadGuard::reserve(&load, placed(0, 50)));
    let _silent = place(2000);
    stream.first_token(ms(150));
    assert_eq!(counts(&load), (3, 1, 2000), "the stream's token shows that those before it are computed");
    refresh(&load, 300);
    assert_eq!(counts(&load), (3, 1, 2000), "it is not its time yet");
    refresh(&load, 350);
    assert_eq!(counts(&load), (3, 0, 0));
    drop((_overtaken, stream, _silent));
    assert_eq!(counts(&load), (0, 0, 0));
}

#[test]
fn only_whose_turn_it_is_can_be_overdue() {
    let load = ReplicaLoad::new();
    let first = LoadGuard::reserve(&load, placed(100, 700));
    let second = LoadGuard::reserve(&load, placed(120, 50));
    assert_eq!(first.overdue(ms(900)).map(|l| l.busy.as_millis()), Some(800));
    assert_eq!(second.overdue(ms(900)), None);
}

#[test]
fn a_panic_in_the_stream_releases_its_load() {
    let load = ReplicaLoad::new();
    let inside = Arc::clone(&load);
    let ended = std::thread::spawn(move || {
        let _guard = LoadGuard::reserve(&inside, placed(0, 9));
        panic!("a stream's task fell over");
    });
    assert!(ended.join().is_err());
    assert_eq!(counts(&load), (0, 0, 0));
}

#[test]
fn many_threads_leave_nothing_behind() {
    let load = ReplicaLoad::new();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let load = &load;
            scope.spawn(move || {
                for i in 0..500 {
                    let mut guard = LoadGuard::reserve(load, placed(i, i + thread));
                    if i % 2 == 0 {
                        guard.first_token(ms(i));
                    }
                }
            });
        }
    });
    assert_eq!(counts(&load), (0, 0, 0));
    assert_eq!(load.view().context, 0);
}

#[test]
fn a_guard_may_move_between_threads() {
    fn is_send<T: Send + 'static>() {}
    is_send::<LoadGuard>();
}

#[test]
fn requests_of_others_count_as_load_and_teach_no_speed() {
    let load = ReplicaLoad::new();
    let theirs = Placement { is_followed: true, tpot: Some(Duration::from_millis(50)), ..placed(100, 1000) };
    let mut theirs = LoadGuard::reserve(&load, theirs);
    let mut ours = LoadGuard::reserve(&load, placed(101, 1000));
    assert_eq!((counts(&load), load.own()), ((2, 2, 2000), 1));
    // Behind a prompt of others whose first token is not known yet.
    ours.first_token(ms(300));
    theirs.first_token(ms(200));
    assert_eq!(counts(&load), (2, 0, 0));
    drop(ours);
    let found = refresh(&load, 1200);
    assert!(found.samples.is_empty() && found.paces.is_empty(), "{found:?}");
    // A second at 20 ms a token.
    assert!((1040..=1060).contains(&load.context()), "{}", load.context());
    drop(theirs);
    assert_eq!((counts(&load), load.own(), load.context()), ((0, 0, 0), 0, 0));
}

#[test]
fn first_tokens_that_wait_for_ends_show_how_many_run_and_teach_no_slowness() {
    // Four run. Each second one is sent; `ends` after so much one of the four ends, and the new one has its first token.
    let after = |rounds: u64, ends: u64, first_token: u64| {
        let load = ReplicaLoad::new();
        let mut running = std::collections::VecDeque::from(answered(
            &load,
            [(100, 110), (100, 120), (100, 130), (100, 140)],
        ));
        let mut busy = Vec::new();
        for round in 1..=rounds {
            let at = round * 1000;
            let mut next = LoadGuard::reserve(&load, placed(at, 100));
            let oldest = running.pop_front().unwrap();
            oldest.progress(200, ms(at + ends));
            if ends < first_token {
                drop(oldest);
                next.first_token(ms(at + first_token));
            } else {
                next.first_token(ms(at + first_token));
                drop(oldest);
            }
            running.push_back(next);
            let samples = refresh(&load, at + 990).samples;
            busy.extend(samples.iter().filter(|s| s.at > ms(at)).map(|s| s.busy.as_millis()));
        }
        (load.batch_limit(), busy)
    };
    assert_eq!(after(4, 500, 510), (None, vec![10; 4]), "the engine needed 10 ms, and they waited 500");
    assert_eq!(after(5, 500, 510).0, Some(4));
    assert_eq!(after(9, 500, 900), (None, vec![400; 9]), "slow whoever ended");
    assert_eq!(after(9, 510, 500), (None, vec![500; 9]), "nobody made room");
}

#[test]
fn a_prompt_that_was_overtaken_is_ahead_of_no_other_once_it_is_overdue() {
    let load = ReplicaLoad::new();
    let mut lost = LoadGuard::reserve(&load, placed(100, 700));
    let behind = answered(&load, [(50, 200), (60, 300)]);
    refresh(&load, 10_100);
    assert_eq!(counts(&load), (3, 1, 700), "it may have taken long to reach the engine");
    assert_eq!(load.view().head.tokens, 700);
    refresh(&load, 10_101);
    assert_eq!((counts(&load), load.view().head.tokens), ((3, 0, 0), 0));
    assert_eq!(load.quiet(ms(10_101)), ms(10_101).since(ms(100)), "it is silent all the same");
    lost.first_token(ms(11_000));
    assert_eq!((counts(&load), load.view().context), ((3, 0, 0), 700 + 50 + 60 + 3));
    drop((lost, behind));
    assert_eq!((counts(&load), load.view().context), ((0, 0, 0), 0));
    let first = LoadGuard::reserve(&load, placed(12_000, 700));
    let mut long = LoadGuard::reserve(&load, placed(12_000, 100_000));
    drop(answered(&load, [(50, 12_200)]));
    refresh(&load, 32_000);
    assert_eq!(counts(&load), (2, 1, 100_000), "a long prompt has twice its time");
    drop(first);
    long.first_token(ms(33_000));
    assert_eq!(counts(&load), (1, 0, 0));
}

#[test]
fn what_the_page_does_not_show_is_not_in_the_engines_queue() {
    let load = ReplicaLoad::new();
    let unseen = |shown, since| {
        load.counted(Shown { running: shown, waiting: 0 }, ms(since), ms(since + 1000));
        (load.view().awaiting, load.view().unseen)
    };
    let running = answered(&load, [(50, 200), (60, 300)]);
    let lost = [400, 450].map(|at| LoadGuard::reserve(&load, placed(at, 700)));
    running.iter().for_each(|stream| stream.progress(9, ms(1400)));
    assert_eq!(unseen(2, 400), (2, 0), "the page may be older than the requests");
    let young = LoadGuard::reserve(&load, placed(1500, 80));
    assert_eq!(unseen(4, 1000), (3, 0));
    assert_eq!(unseen(3, 1000), (3, 1));
    assert_eq!(unseen(2, 1000), (3, 2));
    assert_eq!(unseen(2, 3000), (3, 2), "these streams do not move: perhaps their clients are slow");
    assert_eq!(unseen(0, 3000), (3, 3));
    assert_eq!(unseen(1, 3000), (3, 3), "it may be another's");
    assert_eq!(unseen(5, 3000), (3, 0), "all of them are there");
    assert_eq!(unseen(0, 3000), (3, 3));
    drop(young);
    assert_eq!(load.view().unseen, 2);
    refresh(&load, 10_000);
    assert_eq!(counts(&load), (2, 2, 1400), "two are finished there");
    refresh(&load, 10_451);
    assert_eq!(counts(&load), (2, 0, 0), "for as long they count for predictions");
    drop(lost);
    let _next = LoadGuard::reserve(&load, placed(11_000, 80));
    assert_eq!((load.view().awaiting, load.view().unseen), (1, 0));
}

#[test]
fn streams_that_the_engine_has_finished_and_slow_clients_have_yet_to_read_run_no_more() {
    let target = Target::new(0, 1);
    let streams = answered(&target.load, std::array::from_fn::<_, 20, _>(|n| (100, 110 + n as u64)));
    let pages = |running: f64, from: u64| {
        for second in from..from + 2 {
            let page = EnginePage { running: Some(running), waiting: Some(0.0), ..EnginePage::default() };
            target.scraped(page, ms(second * 1000));
        }
        target.load.view().decoding()
    };
    assert_eq!(pages(20.0, 1), 20, "held up by their clients, and not finished");
    assert_eq!(pages(3.0, 3), 3);
    refresh(&target.load, 4_500);
    assert!(target.load.view().held <= 3 * 101, "{:?}", target.load.view());
    assert_eq!(target.load.inflight(), 20, "all are in flight");
    streams.iter().for_each(|stream| stream.progress(50, ms(5_500)));
    assert_eq!(pages(20.0, 6), 20);
    drop(streams);
    assert_eq!(pages(0.0, 8), 0);
    let waiting = LoadGuard::reserve(&target.load, placed(9_500, 10));
    assert_eq!((pages(0.0, 10), target.load.view().inflight), (0, 1));
    drop(waiting);
}
