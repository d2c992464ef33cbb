//! The scaler over simulated time, on loads written by hand.

use std::time::{Duration, SystemTime};

use super::*;
use crate::autoscale::judge::typical;
use crate::routing::Typical;

/// A pool whose engines do what they are told; seconds pass by [`Pool::run`].
struct Pool {
    scaler: Scaler,
    target: Target,
    load: PoolLoad,
    now: f64,
}

impl Pool {
    fn new(ready: usize, scale: Scale) -> Self {
        let load = PoolLoad {
            pool: "p".into(),
            engines_per_replica: 1,
            typical: Some(typical()),
            engines: (0..ready).map(|n| engine(n, ReplicaState::Ready)).collect(),
            ..PoolLoad::default()
        };
        let bound = TtftBound { base: Duration::from_secs(1), per_prompt_token: Duration::ZERO };
        let target = Target { scale, ttft: vec![bound], ..Target::default() };
        Self { scaler: Scaler::default(), target, load, now: 0.0 }
    }

    /// So many seconds at a rate; returns what was wanted each second.
    fn run(&mut self, seconds: u32, rate: u64) -> Vec<usize> {
        (0..seconds).map(|_| self.second(rate).replicas()).collect()
    }

    /// Until what was there at the start no longer counts; returns what is wanted from then on.
    fn settle(&mut self, rate: u64) -> Vec<usize> {
        self.run(400, rate);
        let settled = self.run(100, rate);
        assert_eq!(changes(&settled), 0, "{settled:?}");
        settled
    }

    fn second(&mut self, rate: u64) -> Recommendation {
        self.now += 1.0;
        self.load.arrivals += rate;
        self.scaler.look(self.now, SystemTime::UNIX_EPOCH, &self.load, &self.target)
    }
}

fn engine(n: usize, state: ReplicaState) -> EngineLoad {
    EngineLoad { replica: format!("r{n}").into(), state, share: 1.0, ..EngineLoad::default() }
}

fn changes(wanted: &[usize]) -> usize {
    wanted.windows(2).filter(|pair| pair[0] != pair[1]).count()
}

#[test]
fn up_comes_at_once_and_down_after_the_window() {
    let mut pool = Pool::new(4, Scale::default());
    let calm = *pool.settle(8).last().unwrap();
    assert!((2..=5).contains(&calm), "{calm}");
    let up = pool.run(60, 40);
    assert!(up[20] > 2 * calm, "{up:?}");
    let down = pool.run(700, 8);
    assert!(down[240] >= up[59] && down[699] == calm, "{down:?}");
    assert!(down.is_sorted_by(|before, after| before >= after), "{down:?}");
}

#[test]
fn ejected_replicas_serve_nothing_unless_all_are() {
    let mut pool = Pool::new(4, Scale::default());
    let before = *pool.settle(10).last().unwrap();
    pool.load.engines[0].state = ReplicaState::Ejected;
    let wanted = pool.second(10);
    assert_eq!(wanted.replicas(), before + 1);
    assert!(wanted.scale.reason.ends_with("and 1 ejected serve nothing"), "{}", wanted.scale.reason);
    pool.load.engines.iter_mut().for_each(|engine| engine.state = ReplicaState::Ejected);
    assert_eq!(
        pool.second(10).scale.needed_replicas,
        before,
        "what all have in common more replicas would have too"
    );
}

#[test]
fn without_a_measurement_the_number_that_is_there_is_kept() {
    let mut pool = Pool::new(3, Scale::default());
    pool.load.typical = None;
    pool.load.engines[2].state = ReplicaState::Starting;
    let wanted = pool.second(50);
    assert_eq!(wanted.replicas(), 3);
    assert_eq!(wanted.scale.reason, "no answer has been measured yet: as many as there are");
    // Transcriptions count no tokens. What stands in front of their engines shows that they are too few.
    for engine in &mut pool.load.engines[..2] {
        (engine.inflight, engine.waiting, engine.running) = (5, Some(3.0), Some(2.0));
    }
    pool.run(20, 50);
    let wanted = pool.second(50);
    assert_eq!(wanted.replicas(), 4, "at most twice as many as serve");
    assert!(
        wanted.scale.reason.starts_with("at least 6 requests have waited for 15 s"),
        "{}",
        wanted.scale.reason
    );
}

#[test]
fn unmeasured_answers_ask_for_more_one_look_at_a_time_and_for_less_once_fewer_run() {
    let mut pool = Pool::new(1, Scale::default());
    pool.load.typical = None;
    let busy = |engines: &mut [EngineLoad], running: u64, waiting: Option<f64>| {
        for engine in engines {
            (engine.inflight, engine.running, engine.waiting) = (running, Some(running as f64), waiting);
        }
    };
    busy(&mut pool.load.engines, 2, Some(0.0));
    assert_eq!(pool.run(1, 4), [1]);
    busy(&mut pool.load.engines, 5, Some(3.0));
    pool.load.engines[0].running = Some(2.0);
    assert_eq!(*pool.run(20, 4).last().unwrap(), 2);
    // What comes is not enough yet, which shows only after a while.
    pool.load.engines.push(engine(1, ReplicaState::Ready));
    assert_eq!(changes(&pool.run(16, 4)), 0, "what waited before it came is no reason for another");
    assert_eq!(pool.second(4).replicas(), 4);
    pool.load.engines.extend([2, 3].map(|n| engine(n, ReplicaState::Ready)));
    busy(&mut pool.load.engines, 0, Some(0.0));
    busy(&mut pool.load.engines[..3], 1, Some(0.0));
    let down = pool.run(700, 3);
    assert_eq!((down[200], down[699]), (4, 2), "two at once ran without a wait on one");
    busy(&mut pool.load.engines, 0, None);
    assert_eq!(pool.run(700, 1)[699], 4, "what engines do not report is no reason");
}

#[test]
fn a_restart_with_known_speeds_keeps_what_is_there_for_the_window_of_a_scale_down() {
    let mut pool = Pool::new(6, Scale::default());
    pool.load.engines[5].state = ReplicaState::Probing;
    let first = pool.second(4);
    assert_eq!(first.replicas(), 6);
    assert!(
        first.scale.reason.starts_with("6 were there when the gateway started; now"),
        "{}",
        first.scale.reason
    );
    let wanted = pool.run(500, 4);
    assert!(wanted[..300].iter().all(|wanted| *wanted == 6) && wanted[499] < 4, "{wanted:?}");
    // What its discovery finds a moment later was there as well.
    let mut pool = Pool::new(0, Scale::default());
    pool.second(0);
    pool.load.engines = (0..6).map(|n| engine(n, ReplicaState::Ready)).collect();
    assert_eq!(pool.run(100, 4)[99], 6);
}

#[test]
fn listed_replicas_of_a_pool_at_zero_are_not_asked_for_by_a_restart() {
    let mut pool = Pool::new(4, Scale { min_replicas: 0, ..Scale::default() });
    pool.load.engines.iter_mut().for_each(|engine| engine.state = ReplicaState::Starting);
    for typical in [None, pool.load.typical] {
        pool.load.typical = typical;
        assert_eq!(pool.second(0).replicas(), 0);
    }
    pool.load.engines[0].state = ReplicaState::Probing;
    assert_eq!(pool.second(0).replicas(), 1, "one has been started");
}

#[test]
fn an_idle_pool_goes_to_zero_only_where_it_may_and_a_request_brings_it_back_at_once() {
    let idle = |min_replicas| {
        let mut pool =
            Pool::new(1, Scale { min_replicas, idle_after: Duration::from_secs(60), ..Scale::default() });
        pool.run(20, 1);
        let wanted = pool.run(400, 0);
        (pool, wanted)
    };
    assert_eq!(idle(1).1[399], 1);
    let (mut pool, wanted) = idle(0);
    assert_eq!((wanted[50], wanted[60]), (1, 0), "{wanted:?}");
    pool.load.engines.clear();
    assert_eq!(pool.second(0).replicas(), 0);
    pool.load.queued = 1;
    assert_eq!(pool.second(0).replicas(), 1);
    let mut fresh = Pool::new(0, Scale { min_replicas: 0, ..Scale::default() });
    fresh.load.typical = None;
    assert_eq!(fresh.second(0).replicas(), 0, "a gateway that starts beside an empty pool wakes nobody");
    assert_eq!(fresh.second(1).replicas(), 1);
}

#[test]
fn a_replica_that_a_request_woke_is_asked_for_until_it_can_have_come() {
    let (idle_after, scale_down_after) = (Duration::from_secs(60), Duration::from_secs(5));
    let scale = Scale { min_replicas: 0, idle_after, scale_down_after, ..Scale::default() };
    for typical in [None, Pool::new(1, Scale::default()).load.typical] {
        let mut pool = Pool::new(0, scale.clone());
        pool.load.typical = typical;
        pool.second(0);
        pool.second(1);
        // Its client has left, or was refused: nothing waits, and nothing is there.
        let wanted = pool.run(70, 0);
        assert_eq!((wanted[50], wanted[69]), (1, 0), "{wanted:?}");
    }
}

#[test]
fn requests_that_hang_keep_a_pool_awake() {
    let mut pool =
        Pool::new(1, Scale { min_replicas: 0, idle_after: Duration::from_secs(60), ..Scale::default() });
    pool.load.engines[0].inflight = 1;
    assert!(pool.run(900, 0).iter().all(|wanted| *wanted == 1));
}

#[test]
fn a_prediction_that_stays_over_the_bound_asks_for_more_whatever_the_model_says() {
    let mut pool = Pool::new(4, Scale::default());
    pool.run(100, 1);
    pool.load.predicted_ttft = Some(Duration::from_secs(30));
    let wanted = pool.run(100, 1);
    assert!(
        wanted[5] < 8 && wanted[30] == 8 && wanted[99] == 8,
        "no more than twice what serves: {wanted:?}"
    );
    pool.load.predicted_ttft = Some(Duration::from_millis(100));
    assert!(pool.run(400, 1)[399] < 4);
}

#[test]
fn a_time_in_which_the_gateway_stood_still_is_none_in_which_predictions_stayed_over_the_bound() {
    let mut pool = Pool::new(4, Scale::default());
    pool.run(500, 1);
    pool.load.predicted_ttft = Some(Duration::from_secs(30));
    pool.now += 15.0;
    assert!(pool.run(10, 1).iter().all(|wanted| *wanted < 8));
    assert_eq!(pool.run(10, 1)[9], 8, "now it has");
}

#[test]
fn a_gateway_that_waits_for_cpu_asks_for_no_more_than_twice_what_serves() {
    for (is_starved, most) in [(false, Scale::default().max_replicas), (true, 8)] {
        let mut pool = Pool::new(4, Scale::default());
        pool.run(100, 1);
        pool.load.is_starved = is_starved;
        // Stalls of its own, learned as prefill.
        pool.load.typical.as_mut().unwrap().prefill *= 100.0;
        let wanted = pool.run(20, 8).into_iter().max().unwrap();
        assert!(wanted <= most && (is_starved || wanted > 8), "{is_starved}: {wanted}");
    }
}

#[test]
fn more_running_than_is_explained_counts() {
    let mut pool = Pool::new(4, Scale::default());
    let before = *pool.settle(8).last().unwrap();
    pool.load.engines.iter_mut().for_each(|engine| {
        (engine.inflight, engine.running) = (20, Some(20.0));
    });
    assert!(pool.run(300, 8)[299] > before);
}

#[test]
fn what_other_gateways_sent_counts_whether_they_are_followed_or_not() {
    let wanted = |own, followed, foreign| {
        let mut pool = Pool::new(4, Scale::default());
        pool.settle(8);
        pool.load.engines.iter_mut().for_each(|engine| {
            (engine.inflight, engine.followed, engine.foreign) = (own + followed, followed, foreign);
            engine.running = Some(20.0);
        });
        pool.run(300, 8)[299]
    };
    assert_eq!(wanted(5, 15, 0.0), wanted(5, 0, 15.0));
    assert!(wanted(5, 15, 0.0) > wanted(20, 0, 0.0));
}

/// Answers of a token or two: nearly all of a request's time is its prompt's, and the wait for others' prompts.
#[test]
fn others_requests_stay_as_long_as_ours_and_prompts_in_computation_are_no_others() {
    let wanted = |foreign| {
        let mut pool = Pool::new(4, Scale::default());
        let short = Typical { output: 2.0, prefill: 0.5, ..typical() };
        pool.load.typical = Some(short);
        pool.load.engines.iter_mut().for_each(|engine| {
            (engine.inflight, engine.running, engine.waiting, engine.foreign) =
                (2, Some(1.0), Some(1.0), foreign);
        });
        pool.run(600, 4);
        pool.second(4).scale
    };
    let alone = wanted(0.0);
    assert_eq!((alone.terms.foreign_rate, alone.terms.unexplained_running), (0.0, 1.0), "{alone:?}");
    let shared = wanted(2.0);
    let as_many = 3.5..4.5;
    assert!(as_many.contains(&shared.terms.foreign_rate), "{shared:?}");
}

#[test]
fn what_was_learned_for_a_moment_asks_for_no_more_than_serve() {
    let mut pool = Pool::new(4, Scale::default());
    pool.settle(8);
    let usual = pool.load.typical;
    pool.load.typical = Some(Typical { prefill: 4.0, ..typical() });
    assert_eq!(pool.run(12, 8), [4; 12]);
    pool.load.typical = usual;
    assert_eq!(pool.run(30, 8), [4; 30]);
    pool.load.typical = Some(Typical { prefill: 1.0, ..typical() });
    assert!(pool.run(20, 8)[19] > 4);
}

#[test]
fn a_gateway_that_stood_still_takes_nothing_back() {
    let scale = Scale { scale_down_after: Duration::ZERO, ..Scale::default() };
    let mut pool = Pool::new(4, scale);
    let calm = *pool.settle(8).last().unwrap();
    pool.now += 15.0;
    assert_eq!(pool.run(3, 8), [calm; 3]);
}

#[test]
fn a_gateway_that_waits_for_cpu_asks_for_no_fewer_than_serve() {
    let mut pool = Pool::new(6, Scale::default());
    pool.load.is_starved = true;
    let wanted = pool.settle(1);
    assert_eq!(wanted.last(), Some(&6), "it takes in fewer than come");
    pool.load.is_starved = false;
    assert!(*pool.settle(1).last().unwrap() < 6);
}

#[test]
fn bounds_hold_whatever_comes() {
    let scale = Scale { min_replicas: 2, max_replicas: 5, ..Scale::default() };
    let mut pool = Pool::new(2, scale);
    assert!(pool.run(100, 0).iter().all(|wanted| *wanted == 2));
    let wanted = (0..100).map(|_| pool.second(1000)).last().unwrap();
    assert_eq!(wanted.replicas(), 5);
    assert!(wanted.scale.reason.ends_with("max_replicas allows no more than 5"), "{}", wanted.scale.reason);
}

#[test]
fn the_cold_start_that_was_measured_is_the_one_that_counts() {
    let mut pool = Pool::new(2, Scale::default());
    assert_eq!(pool.second(1).scale.terms.cold_start, 120.0);
    for took in [30, 45] {
        pool.load.engines[1].cold_starts.note(Duration::from_secs(took));
    }
    let terms = pool.second(1).scale.terms;
    assert_eq!((terms.cold_start, terms.cold_start_measured), (45.0, true));
    pool.load.engines.clear();
    assert_eq!(pool.second(1).scale.terms.cold_start, 45.0, "known after it has left");
}

#[test]
fn two_ranks_behind_a_url_are_one_replica() {
    let mut pool = Pool::new(8, Scale::default());
    let alone = pool.run(200, 20)[199];
    let mut pool = Pool::new(8, Scale::default());
    pool.load.engines_per_replica = 2;
    assert_eq!(pool.run(200, 20)[199], alone.div_ceil(2));
}

#[test]
fn figures_of_nonsense_do_no_harm() {
    for odd in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
        let mut pool = Pool::new(2, Scale { max_replicas: 9, ..Scale::default() });
        for engine in &mut pool.load.engines {
            (engine.running, engine.waiting, engine.context, engine.share) =
                (Some(odd), Some(odd), Some(odd), odd);
        }
        for _ in 0..60 {
            let wanted = pool.second(5);
            assert!((1..=9).contains(&wanted.replicas()), "{odd}");
        }
    }
}

#[test]
fn names_that_come_and_go_are_not_kept() {
    let mut pool = Pool::new(0, Scale::default());
    for n in 0..1000 {
        pool.load.engines = vec![engine(n, ReplicaState::Ready)];
        pool.load.engines[0].cold_starts.note(Duration::from_secs(10));
        pool.second(1);
    }
    assert_eq!(pool.scaler.cold_starts.counted.len(), 1);
    assert_eq!(pool.scaler.cold_starts.latest.len(), KEPT_COLD_STARTS);
}

#[test]
fn a_pool_that_computes_prompts_is_sized_for_prompts() {
    let wanted = |output| {
        let mut pool = Pool::new(2, Scale { max_replicas: 64, ..Scale::default() });
        pool.load.typical = Some(Typical { output, ..typical() });
        pool.load.engines.iter_mut().for_each(|engine| engine.batch_limit = Some(8));
        // Eight prompts of 100 ms a second slow the steps of two engines down to more than that.
        pool.target.tpot = Some(Duration::from_millis(16));
        pool.run(120, 8).pop().unwrap()
    };
    let (prompts, answers) = (wanted(1.0), wanted(200.0));
    // Answers of 200 tokens at 10 ms and more in batches of eight.
    assert!(prompts <= 2 && answers > 2 * prompts, "{prompts} {answers}");
}
