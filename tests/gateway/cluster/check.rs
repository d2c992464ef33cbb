//! `tokenway check --online` with a broker: what is wrong with it, in a sentence.

use std::process::Command;

use tempfile::TempDir;

use crate::support::redis::Redis;
use crate::support::replica::Replica;

/// Exit code and output for a broker of this URL.
async fn check(replica: &Replica, url: &str) -> (i32, String) {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("gateway.toml");
    let (model, addr) = ("tiny", replica.addr);
    let text = format!(
        "[routing]\nseed = \"s\"\n[cluster]\nurl = \"{url}\"\n[[pool]]\nname = \"p\"\nreplicas = [\"http://{addr}\"]\n[[route]]\nmodel = \"{model}\"\n"
    );
    std::fs::write(&file, text).unwrap();
    let checking = move || {
        let output = Command::new(env!("CARGO_BIN_EXE_tokenway"))
            .args(["check", "--online"])
            .arg(&file)
            .output()
            .unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.code().unwrap(), text)
    };
    let result = tokio::task::spawn_blocking(checking).await.unwrap();
    drop(folder);
    result
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_online_tries_the_broker_and_names_what_is_wrong_with_it() {
    let (mut redis, replica) = (Redis::start().await, Replica::start().await);
    let addr = redis.addr;
    let (code, out) = check(&replica, &format!("redis://{addr}")).await;
    assert!(
        code == 0 && out.contains(&format!("broker redis://{addr} of cluster tokenway: answers, ")),
        "{out}"
    );
    for command in ["REPLICAOF 127.0.0.1 1"] {
        assert!(redis.ask(command).await.unwrap().starts_with("+OK"), "{command}");
    }
    let (code, out) = check(&replica, &format!("redis://{addr}")).await;
    assert!(code == 1 && out.contains("it is a read-only replica"), "{out}");
    for command in [
        "REPLICAOF NO ONE",
        "ACL SETUSER half on >half ~* &* +@all -publish",
        "ACL SETUSER timeless on >timeless ~* &* +@all -time",
        "ACL SETUSER unranged on >unranged ~* &* +@all -zremrangebyscore",
        "ACL SETUSER gateway on >right ~tokenway:* &tokenway:* +@all",
        "CONFIG SET requirepass secret",
    ] {
        assert!(redis.ask(command).await.unwrap().starts_with("+OK"), "{command}");
    }
    for (login, found) in [
        ("", "it wants a password"),
        (":wrong@", "it refuses user or password"),
        ("half:half@", "PUBLISH is refused"),
        ("timeless:timeless@", "TIME is refused"),
        ("unranged:unranged@", "ZREMRANGEBYSCORE is refused"),
        ("gateway:right@", "answers, "),
        (":secret@", "answers, "),
    ] {
        let (code, out) = check(&replica, &format!("redis://{login}{addr}")).await;
        assert!(out.contains(found) && code == i32::from(!found.starts_with("answers")), "{login}: {out}");
        assert!(
            !["wrong", "half:", "timeless:", "unranged:", "right", "secret"]
                .iter()
                .any(|word| out.contains(word)),
            "{out}"
        );
    }
    let (code, out) = check(&replica, &format!("redis://{}", replica.addr)).await;
    assert!(code == 1 && out.contains("not usable"), "an engine is no broker: {out}");
    let (code, out) = check(&replica, &format!("rediss://{addr}")).await;
    assert!(code == 1 && out.contains("for TLS also rediss:// and cluster.ca"), "{out}");
    redis.kill();
    let (code, out) = check(&replica, &format!("redis://{addr}")).await;
    assert!(code == 1 && out.contains("check host and port"), "{out}");
}
