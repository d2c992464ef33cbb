//! The screen as an operator sees it, drawn into memory.

use std::sync::Arc;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::*;

fn incident() -> Known {
    let snapshot = Snapshot {
        slo: read(json!({
            "version": env!("CARGO_PKG_VERSION"), "status": "bad",
            "sentence": "chat misses its SLO: 29 of 32 requests late, most in engine_queue at gpu-2",
            "routes": [
                {"route": "chat", "status": "bad", "goodput": {"share": 0.1, "per_second": 0.3, "requests": 32},
                 "ttft": {"p50": 0.8, "p99": 14.2}, "itl": {"p99": 0.051}, "bound": {"ttft": 0.5},
                 "burn": {"5m": 90.6, "1h": 12.0}, "missed_in": {"engine_queue": 26, "prefill": 3}},
                {"route": "embed", "status": "ok", "goodput": {"share": 1.0, "per_second": 4.0, "requests": 240},
                 "ttft": {"p50": null, "p99": null}, "burn": {"5m": 0.0, "1h": 0.0}, "missed_in": {}}],
        })),
        fleet: read(json!({"replicas": [
            {"replica": "gpu-1", "pool": "main", "state": "ready", "reason": "answered", "inflight": 3, "on_trial": false,
             "signals": {"age": 0.4, "running": 3, "waiting": 0, "kv_cache_usage": 0.31}},
            {"replica": "gpu-2", "pool": "main", "state": "ejected", "reason": "connect refused", "inflight": 0, "signals": null}]})),
        requests: read(json!({"requests": [
            {"request_id": "r-9", "time": "2026-11-22T12:00:01.000Z", "route": "chat", "replica": "gpu-2", "outcome": "failed",
             "status": 502, "ttft": null, "duration": 0.3, "slo_missed": null, "slo_missed_in": null},
            {"request_id": "r-8", "time": "2026-11-22T12:00:00.000Z", "route": "chat", "replica": "gpu-1", "outcome": "ok",
             "status": 200, "ttft": 14.2, "duration": 16.0, "slo_missed": "ttft", "slo_missed_in": "engine_queue"}]})),
        ..Snapshot::default()
    };
    Known { url: "http://127.0.0.1:9090".to_owned(), snapshot: Some(snapshot.into()), trouble: None }
}

fn read<T: DeserializeOwned>(answer: Value) -> T {
    serde_json::from_value(answer).unwrap()
}

fn drawn(known: &Known, looking: &mut Looking, (width, height): (u16, u16)) -> (String, Vec<Color>) {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view::draw(frame, known, looking, true)).unwrap();
    let buffer = terminal.backend().buffer();
    let colors = buffer.content().iter().map(|cell| cell.fg).collect();
    let lines = buffer.content().chunks(usize::from(width)).map(|line| {
        let text: String = line.iter().map(|cell| cell.symbol()).collect();
        text.trim_end().to_owned()
    });
    (Vec::from_iter(lines).join("\n"), colors)
}

fn press(looking: &mut Looking, keys: &[KeyCode]) {
    for key in keys {
        looking.press(KeyEvent::new(*key, KeyModifiers::NONE));
    }
}

#[test]
fn the_first_screen_names_route_stage_and_replica() {
    let mut looking = Looking::default();
    let (text, colors) = drawn(&incident(), &mut looking, (140, 12));
    for part in [
        "tokenway http://127.0.0.1:9090\n■ chat misses its SLO: 29 of 32 requests late, most in engine_queue at gpu-2\n",
        " 1 Routes (2)   2 Replicas (2)   3 Slow and failed (2)   4 Findings (0)",
        "route              slo     goodput  good/s  requests ttft p50  ttft p99",
        "chat               bad     10 %     0.3     32       800 ms    14.20 s   500 ms   51 ms    90.6    12.0    engine_queue 26, prefill 3",
        "q quit  tab next",
    ] {
        assert!(text.contains(part), "{part}\n---\n{text}");
    }
    assert!(colors.contains(&Color::Red) && colors.contains(&Color::Green));
}

#[test]
fn keys_choose_table_row_order_and_filter() {
    let known = incident();
    let mut looking = Looking::default();
    press(&mut looking, &[KeyCode::Tab]);
    let (text, _) = drawn(&known, &mut looking, (140, 12));
    assert!(text.contains("gpu-1                  main           ready"), "{text}");
    assert!(text.contains("gpu-2                  main           ejected"), "{text}");
    press(&mut looking, &[KeyCode::Char('j'), KeyCode::Char('j'), KeyCode::Down]);
    drawn(&known, &mut looking, (140, 12));
    assert_eq!(looking.row, 1, "the row stays within the table");
    press(
        &mut looking,
        &[KeyCode::Char('/'), KeyCode::Char('q'), KeyCode::Backspace, KeyCode::Char('2'), KeyCode::Enter],
    );
    let (text, _) = drawn(&known, &mut looking, (140, 12));
    assert!(
        !text.contains("gpu-1") && text.contains("gpu-2") && text.contains("[filter: 2, esc clears it]"),
        "{text}"
    );
    press(&mut looking, &[KeyCode::Esc, KeyCode::Char('3')]);
    press(&mut looking, &[KeyCode::Char('s'); 6]);
    let rows = looking.table(known.snapshot.as_ref().unwrap()).rows;
    assert_eq!(rows[0].cells[9], "r-8", "the slowest first token comes first");
    press(&mut looking, &[KeyCode::Char('r'), KeyCode::Char('p')]);
    let rows = looking.table(known.snapshot.as_ref().unwrap()).rows;
    assert_eq!((rows[0].cells[9].as_str(), looking.is_paused), ("r-9", true));
    press(&mut looking, &[KeyCode::Char('q')]);
    assert!(looking.is_over);
}

#[test]
fn enter_explains_the_selected_row_in_sixty_columns() {
    let mut known = incident();
    let mut looking = Looking::default();
    let (text, _) = drawn(&known, &mut looking, (60, 14));
    for part in ["most in\nengine_queue at gpu-2", "ttft p99", "14.20 s", "missed in", "⏎ explain"] {
        assert!(text.contains(part), "{part}\n---\n{text}");
    }
    press(&mut looking, &[KeyCode::Char('2'), KeyCode::Enter]);
    let (text, _) = drawn(&known, &mut looking, (60, 30));
    assert!(text.contains("reason       answered") && text.contains("kv           31 %"), "{text}");
    press(&mut looking, &[KeyCode::Esc, KeyCode::Char('3'), KeyCode::Enter]);
    let (text, _) = drawn(&known, &mut looking, (60, 20));
    assert!(text.contains("asking the gateway for r-9 …"), "{text}");
    known.snapshot.as_mut().and_then(Arc::get_mut).unwrap().explained =
        Some(("r-9".to_owned(), "Where the time went".to_owned()));
    let (text, _) = drawn(&known, &mut looking, (60, 20));
    assert!(text.contains("Where the time went") && text.contains("esc back"), "{text}");
}

#[test]
fn old_figures_and_another_version_are_said() {
    let mut known = incident();
    known.trouble = Some("http://127.0.0.1:9090 does not answer: connect refused\nhint: x".to_owned());
    known.snapshot.as_mut().and_then(Arc::get_mut).unwrap().slo.version = "9.9.9".to_owned();
    let (text, _) = drawn(&known, &mut Looking::default(), (260, 8));
    assert!(text.contains("gateway is version 9.9.9, this is"), "{text}");
    assert!(
        text.contains("OLD FIGURES: http://127.0.0.1:9090 does not answer: connect refused; trying again"),
        "{text}"
    );
}

#[test]
fn any_size_and_any_answer_can_be_drawn() {
    let unknown = Known { snapshot: Some(Arc::default()), ..incident() };
    for known in [incident(), unknown, Known::default()] {
        for size in [(1, 1), (20, 3), (80, 24), (300, 80)] {
            for tab in Tab::ALL {
                drawn(&known, &mut Looking { tab, ..Looking::default() }, size);
            }
        }
    }
}

#[test]
fn without_a_terminal_the_tables_are_text() {
    let known = incident();
    let text = plain(&known.url, known.snapshot.as_ref().unwrap());
    assert!(text.contains("\nSlow and failed (2)\n  at        route"), "{text}");
    assert!(text.contains("\nFindings (0)\n  no drift was found\n"), "{text}");
}
