//! The load generator against simulated engines.

use tokenway_sim::replay::{Figures, Measured};
use tokenway_sim::time::Stamp;

use super::*;
use crate::cli::{Cli, Command, printed, simulated};

fn bench(args: &[&str]) -> (u8, String, String) {
    let Command::Bench(args) = Cli::read(["tokenway", "bench"].iter().chain(args)).unwrap().command else {
        panic!("not bench")
    };
    printed(|outputs| run(&args, &|_| None, outputs, true))
}

#[test]
fn two_targets_get_the_same_requests_and_a_page_is_written() {
    let ((_one, a), (_two, b)) = (simulated(), simulated());
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace.jsonl");
    let line = |at: u32| {
        format!("{{\"timestamp\":{at},\"input_length\":1024,\"output_length\":8,\"hash_ids\":[1,2]}}\n")
    };
    std::fs::write(&trace, (0..6).map(|n| line(n * 40)).collect::<String>()).unwrap();
    let html = directory.path().join("bench.html");
    let (a, b) = (a.url(), b.url());
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let (code, out, err) =
        bench(&[&a, "--against", &b, "--trace", &text(&trace), "--html", &text(&html), "--json"]);
    let told: serde_json::Value = serde_json::from_str(&out).unwrap();
    for at in 0..2 {
        let figures = &told[at]["figures"];
        assert_eq!(
            (figures["requests"].as_u64(), figures["failed"].as_f64()),
            (Some(6), Some(0.0)),
            "{told}"
        );
        assert!(figures["hit_rate"].as_f64().unwrap() > 0.5, "one prompt, six times: {told}");
        let itl = &told[at]["itl"];
        assert!(itl["p50_s"].as_f64().unwrap() <= itl["p99_s"].as_f64().unwrap(), "{told}");
        let sent = &told[at]["from_sending"]["ttft_p50_s"];
        assert!(figures["ttft_p50_s"].as_f64() >= sent.as_f64(), "{told}");
    }
    assert!(code == EXIT_OK && err.contains("12/12 answered, 0 failed"), "{err}");
    assert!(std::fs::read_to_string(html).unwrap().contains("TTFT in seconds"));
}

#[test]
fn a_second_run_finds_nothing_of_the_first_in_the_caches() {
    let (_runtime, sim) = simulated();
    let url = sim.url();
    let load = ["--rate", "100", "--duration", "100ms", "--input-tokens", "256", "--output-tokens", "1"];
    for run in ["first", "second"] {
        let (code, out, err) = bench(&[&[&*url, "--json"], &load[..]].concat());
        let report: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(code, EXIT_OK, "{err}");
        assert_eq!(report[0]["figures"]["hit_rate"].as_f64(), Some(0.0), "{run}: {report}");
    }
}

#[test]
fn the_seed_keeps_times_and_lengths_and_a_run_gives_all_targets_the_same_words() {
    let Command::Bench(args) = Cli::read(["tokenway", "bench", "127.0.0.1:1"]).unwrap().command else {
        panic!("not bench")
    };
    let [one, other] = [(); 2].map(|()| Schedule::read(&args).unwrap());
    assert_eq!(one.requests, other.requests);
    let words = |schedule: &Schedule, serial: usize| schedule.prompt(serial, &schedule.requests[serial]);
    assert_eq!(words(&one, 1), words(&one, 1));
    assert_eq!(words(&one, 1).split_whitespace().count(), 512);
    assert_ne!(words(&one, 1), words(&one, 2));
    assert_ne!(words(&one, 1), words(&other, 1));
}

#[test]
fn latency_counts_from_when_a_request_was_due() {
    let sent = |at: u64| Measured {
        sent: Some(Stamp::from_nanos(at)),
        first_token: Some(Stamp::from_nanos(3_000_000_000)),
        ..Default::default()
    };
    let figures = figures(vec![sent(2_900_000_000)]);
    assert_eq!((figures.ttft_p50_s, figures.goodput), (3.0, 0.0), "sent late is late");
}

/// Against the bounds of a command line without any.
fn figures(requests: Vec<Measured>) -> Figures {
    Figures::of(requests, &crate::cli::replay::bounds(&crate::cli::replay::DEFAULT_SLO))
}

/// A request due at `due` seconds that took two, with or without a usage.
fn took_two(due: u64, cached: Option<u64>, is_failed: bool) -> Measured {
    let at = |seconds: u64| Stamp::from_nanos(seconds * 1_000_000_000);
    Measured {
        arrived: at(due),
        sent: Some(at(due)),
        prompt: 100,
        first_token: (!is_failed).then(|| at(due)),
        last_token: at(due + 2),
        tokens: 1,
        cached,
        is_failed,
        ..Default::default()
    }
}

#[test]
fn goodput_is_per_second_until_the_last_answer_has_ended() {
    assert_eq!(figures(vec![took_two(0, None, false)]).goodput_per_second, 0.5, "two seconds for one");
    assert_eq!(figures(vec![took_two(0, None, false), took_two(2, None, false)]).goodput_per_second, 0.5);
}

#[test]
fn a_single_request_has_figures_that_are_numbers() {
    let (_runtime, sim) = simulated();
    let trace = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(trace.path(), "{\"timestamp\":0,\"input_length\":9,\"output_length\":2}\n").unwrap();
    let (code, out, err) = bench(&[&sim.url(), "--trace", trace.path().to_str().unwrap()]);
    let lines: Vec<Vec<_>> = out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(
        code == EXIT_OK && lines.iter().flatten().all(|cell| !["inf", "NaN"].contains(cell)),
        "{out}{err}"
    );
}

#[test]
fn what_no_request_has_is_no_figure() {
    let failed = || took_two(0, None, true);
    let none = figures(vec![failed()]);
    assert!(none.ttft_p50_s.is_nan() && none.tpot_p99_s.is_nan() && none.hit_rate.is_nan(), "{none:?}");
    assert!(serde_json::to_value(&none).unwrap()["ttft_p50_s"].is_null());
    let half = figures(vec![took_two(0, Some(50), false), failed(), took_two(0, None, false)]);
    assert_eq!(half.hit_rate, 0.5, "those that report it");
    let whole = |tokens| Measured { tokens, ..took_two(0, None, false) };
    let broken = Measured { is_failed: true, ..whole(2) };
    assert_eq!(figures(vec![whole(5), broken]).tpot_p99_s, 0.5, "of answers that are whole");
    // Nothing listens there.
    let (code, out, _) = bench(&["127.0.0.1:1", "--model", "m", "--duration", "10ms"]);
    let row = out.lines().find(|line| line.starts_with("http://127.0.0.1:1 ")).unwrap();
    assert!(code == EXIT_FAILED && row.split_whitespace().filter(|cell| *cell == "-").count() >= 8, "{out}");
}

#[test]
fn what_cannot_be_run_says_why() {
    let (code, out, err) = bench(&["127.0.0.1:1", "--duration", "1s"]);
    assert!(
        code == EXIT_FAILED
            && out.is_empty()
            && err.contains("http://127.0.0.1:1 does not answer: connection refused"),
        "{err}"
    );
    let cut = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        cut.path(),
        "{\"timestamp\":0,\"input_length\":9,\"output_length\":1}\n{\"timestamp\":1,\"inp",
    )
    .unwrap();
    let (code, _, err) = bench(&["127.0.0.1:1", "--trace", cut.path().to_str().unwrap()]);
    assert!(code == EXIT_FAILED && err.contains("line 2: EOF"), "{err}");
    let (code, out, _) = bench(&["127.0.0.1:1", "--model", "m", "--duration", "10ms"]);
    assert!(code == EXIT_FAILED && out.contains("failed 1 times: connection refused"), "{out}");
}
