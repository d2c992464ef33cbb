//! State files over failures: what could not be written or read, and who is told.

use serde_json::Value as Json;
use tempfile::TempDir;

use super::rollouts::{act, canary, revisions, stop_gateway};
use super::serve_support::{DeadPort, Fleet, Gateway, chat, post_chat, replace, until};

const STEPS: &str = "steps = [{ weight = 30, soak = \"1h\" }]";

#[test]
fn a_rollback_that_cannot_be_kept_is_in_force_says_so_and_is_kept_once_it_can() {
    let (_fleets, folder, file) = revisions(&[], STEPS);
    let text = std::fs::read_to_string(&file).unwrap();
    replace(&file, &text.replace("canary.json", "states/canary.json"));
    let gateway = Gateway::ready_with(&file);
    let states = folder.path().join("states");
    until("a saved state", || states.join("canary.json").exists().then_some(()));
    std::fs::rename(&states, folder.path().join("away")).unwrap();
    std::fs::write(&states, "no directory").unwrap();
    let (status, body) = act(&gateway, "rollback");
    assert!(
        status == 500 && body.contains("not_kept") && body.contains("states/canary.json"),
        "{status} {body}"
    );
    assert_eq!(canary(&gateway)["state"], "rolled_back");
    std::fs::remove_file(&states).unwrap();
    std::fs::rename(folder.path().join("away"), &states).unwrap();
    let kept = || {
        let kept: Json = serde_json::from_slice(&std::fs::read(states.join("canary.json")).ok()?).ok()?;
        (kept["routes"]["chat"]["plan"]["state"] == "rolled_back").then_some(())
    };
    until("the verdict is kept", kept);
    gateway.process.signal("KILL");
    drop(gateway);
    let gateway = Gateway::ready_with(&file);
    assert_eq!(canary(&gateway)["state"], "rolled_back");
    stop_gateway(gateway);
}

#[test]
fn budgets_and_keys_that_lie_under_another_admin_port_are_named() {
    let fleet = Fleet::start(&[]);
    let folder = TempDir::new().unwrap();
    let (file, state) = (folder.path().join("gateway.toml"), folder.path().join("state"));
    let tenant = format!("[[tenant]]\nname = \"t\"\nkey_sha256 = [\"{}\"]\n", "0".repeat(64));
    let budget = "[[tenant.budget]]\nwindow = \"month\"\ntokens = 9\n";
    replace(&file, &format!("[[pool]]\nname = \"p\"\nreplicas = {}\n{tenant}{budget}", fleet.toml()));
    std::fs::create_dir(&state).unwrap();
    for kind in ["budgets", "keys"] {
        std::fs::write(state.join(format!("{kind}-1.json")), "{}").unwrap();
    }
    let port = DeadPort::new().port();
    let gateway = Gateway::with_state(&file, &state, port);
    let warnings = gateway.process.err.lines_with("another admin port", 2);
    for kind in ["budgets", "keys"] {
        let (own, other) = (format!("{kind}-{port}.json"), format!("{kind}-1.json"));
        let is_it = |line: &&String| line.contains("WARN") && line.contains(&own) && line.contains(&other);
        assert_eq!(warnings.iter().filter(is_it).count(), 1, "{warnings:?}");
    }
    stop_gateway(gateway);
    // A gateway that has files of its own has been there before.
    for kind in ["budgets", "keys"] {
        std::fs::rename(state.join(format!("{kind}-1.json")), state.join(format!("{kind}-{port}.json")))
            .unwrap();
        std::fs::write(state.join(format!("{kind}-1.json")), "{}").unwrap();
    }
    let gateway = Gateway::with_state(&file, &state, port);
    gateway.wait_ready();
    assert_eq!(gateway.process.err.count("another admin port"), 0);
    stop_gateway(gateway);
}

#[test]
fn a_second_gateway_on_the_same_state_files_warns_and_takes_nothing_away() {
    let fleet = Fleet::start(&[]);
    let folder = TempDir::new().unwrap();
    let (file, state) = (folder.path().join("gateway.toml"), folder.path().join("state"));
    replace(&file, &format!("[[pool]]\nname = \"p\"\nreplicas = {}\n", fleet.toml()));
    let port = DeadPort::new().port();
    let left_over = state.join(format!("usage-{port}.json.0123abcd.new"));
    std::fs::create_dir(&state).unwrap();
    std::fs::write(&left_over, "{").unwrap();
    let first = Gateway::with_state(&file, &state, port);
    assert!(!left_over.exists(), "of a gateway that was killed in a write");
    std::fs::write(&left_over, "{").unwrap();
    let second = Gateway::with_state_at(&file, &state, ([127, 0, 0, 2], port).into());
    let warning = second.process.err.line_with("another gateway with this admin port");
    assert!(warning.contains("WARN") && warning.contains(&format!("keys-{port}.json")), "{warning}");
    assert!(left_over.exists(), "the first one may be writing it");
    stop_gateway(second);
    stop_gateway(first);
    let third = Gateway::with_state_at(&file, &state, ([127, 0, 0, 2], port).into());
    third.wait_ready();
    assert_eq!(third.process.err.count("another gateway with this admin port"), 0);
    stop_gateway(third);
}

#[test]
fn each_route_of_a_broken_state_file_is_named() {
    let (_fleets, folder, file) = revisions(&[], STEPS);
    let text = std::fs::read_to_string(&file).unwrap();
    let (_, route) = text.split_once("[[route]]").unwrap();
    let other = route.replace("\"chat\"", "\"other\"").replace("\"sim\"", "\"sim-2\"");
    replace(&file, &format!("{text}[[route]]{other}"));
    std::fs::write(folder.path().join("canary.json"), "{").unwrap();
    let gateway = Gateway::with_file(&file);
    let told = gateway.process.err.lines_with("the canary waits to be resumed", 2);
    assert!(told[0].contains("\"chat\"") && told[1].contains("\"other\""), "{told:?}");
    assert!(told.iter().all(|line| line.contains("canary.json.corrupt")), "{told:?}");
    // One of them may have been rolled back.
    gateway.wait_ready();
    let waits = canary(&gateway);
    assert_eq!((&waits["state"], &waits["weight"]), (&"paused".into(), &0.0.into()), "{waits}");
    stop_gateway(gateway);
    // The broken file is out of the way by now, and what was decided is as unknown as before.
    let gateway = Gateway::ready_with(&file);
    let still = canary(&gateway);
    assert_eq!((&still["state"], &still["weight"]), (&"paused".into(), &0.0.into()), "{still}");
    assert_eq!(still["reason"], waits["reason"]);
    assert_eq!(act(&gateway, "resume").0, 200);
    assert_eq!(canary(&gateway)["state"], "running");
    stop_gateway(gateway);
}

#[test]
fn a_state_file_whose_disk_hangs_keeps_no_process_from_its_end() {
    let fleet = Fleet::start(&[]);
    let folder = TempDir::new().unwrap();
    let (file, state) = (folder.path().join("gateway.toml"), folder.path().join("state"));
    replace(&file, &format!("[[pool]]\nname = \"p\"\nreplicas = {}\n", fleet.toml()));
    std::fs::create_dir(&state).unwrap();
    let port = DeadPort::new().port();
    let mut gateway = Gateway::with_state(&file, &state, port);
    gateway.wait_ready();
    assert_eq!(post_chat(&gateway.data, &chat("sim", "hi", 2), "").status, 200);
    // Whoever opens a pipe without a writer waits for good.
    let pipe = state.join(format!("usage-{port}.json"));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    gateway.process.signal("TERM");
    gateway.process.err.line_with("draining; a second signal ends at once");
    gateway.process.signal("TERM");
    assert_eq!(gateway.process.exit_code(), 0);
}
