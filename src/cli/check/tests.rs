//! `tokenway check` by its output.

use std::fs;

use super::*;
use crate::cli::printed;
use crate::config::check::ONE_POOL;

struct Shown {
    code: u8,
    out: String,
    err: String,
}

fn of_file(file: PathBuf) -> CheckArgs {
    CheckArgs { file, json: false, online: false, allow_missing_secrets: false, deny_warnings: false }
}

fn check_with(content: &str, change: impl FnOnce(&mut CheckArgs), style: Style) -> Shown {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.toml");
    fs::write(&file, content).unwrap();
    let mut args = of_file(file);
    change(&mut args);
    let (code, out, err) = printed(|outputs| run(&args, &|_| None, outputs, style));
    Shown { code, out, err }
}

fn check(content: &str) -> Shown {
    check_with(content, |_| {}, Style::Plain)
}

fn check_without_secrets(content: &str) -> Shown {
    check_with(content, |args| args.allow_missing_secrets = true, Style::Plain)
}

/// Whether a file passes with this among its warnings.
#[track_caller]
fn warns(content: &str, warning: &str) -> bool {
    let checked = check(content);
    assert_eq!(checked.code, 0, "{}", checked.err);
    checked.err.contains(warning)
}

#[test]
fn a_good_file_is_summed_up() {
    let said = check(ONE_POOL);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    let start = "gateway.toml: ok\n  pool p (revision p): 1 replica\n  route *: model * to p";
    assert!(said.out.contains(start), "{}", said.out);
}

#[test]
fn a_bad_file_is_explained_on_stderr() {
    let said = check("[server]\nlisten = \"nowhere\"\n");
    assert_eq!((said.code, said.out.as_str()), (1, ""));
    let err = said.err;
    assert!(err.contains("gateway.toml:2:10: \"nowhere\" is not an IP address with a port\n"), "{err}");
    assert!(err.contains(" 2 | listen = \"nowhere\"\n   |          ^^^^^^^^^\nhint: "), "{err}");
}

#[test]
fn a_verdict_does_not_depend_on_who_reads_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.toml");
    for (content, expected) in [("[server]\nlisten = \"nowhere\"\n", 1), (ONE_POOL, 0)] {
        fs::write(&file, content).unwrap();
        let args = of_file(file.clone());
        // The reader has left, as `head` does.
        let (mut out, mut err) = (io::pipe().unwrap().1, io::pipe().unwrap().1);
        let code = run(&args, &|_| None, (&mut out, &mut err), Style::Plain).unwrap();
        assert_eq!(code, expected, "{content}");
    }
}

#[test]
fn colour_changes_no_word() {
    let bad = "[server]\nlisten = \"nowhere\"\n[retry]\nbudget = 2\n";
    let colored = check_with(bad, |_| {}, Style::Colored).err;
    assert!(colored.contains("\u{1b}[1;31m"), "{colored}");
    let mut plain = String::new();
    let mut is_code = false;
    for c in colored.chars() {
        match c {
            '\u{1b}' => is_code = true,
            'm' if is_code => is_code = false,
            _ if is_code => {}
            c => plain.push(c),
        }
    }
    let words = |text: &str| {
        text.lines().map(|line| line.rsplit('/').next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(words(&plain), words(&check(bad).err));
}

#[test]
fn json_has_errors_with_places_or_a_summary() {
    let json = |said: &Shown| serde_json::from_str::<Value>(&said.out).unwrap();
    let bad = check_with("[server]\nlisten = \"nowhere\"\n", |args| args.json = true, Style::Plain);
    let read = json(&bad);
    assert_eq!((bad.code, &read["ok"]), (1, &json!(false)));
    let listen = &read["errors"][1];
    assert_eq!((&listen["line"], &listen["column"]), (&json!(2), &json!(10)));
    assert_eq!(bad.err, "");
    let good = check_with(ONE_POOL, |args| args.json = true, Style::Plain);
    let read = json(&good);
    assert_eq!((good.code, &read["ok"]), (0, &json!(true)));
    assert_eq!(read["summary"]["pools"][0]["replicas"], 1);
    let missing = check_with(
        "",
        |args| {
            args.json = true;
            args.file = "/nowhere.toml".into();
        },
        Style::Plain,
    );
    assert!(json(&missing)["errors"][0]["message"].as_str().unwrap().contains("cannot read it"));
}

#[test]
fn prompts_that_only_some_compute_apart_are_a_warning() {
    let pool = |name: &str, role: &str, revision: &str| {
        format!(
            "[[pool]]\nname = \"{name}\"\nrole = \"{role}\"\nrevision = \"{revision}\"\nreplicas = [\"http://{name}:1\"]\n"
        )
    };
    let pools = pool("d", "decode", "one") + &pool("c", "decode", "two") + &pool("f", "prefill", "one");
    let route = "[[route]]\nmodel = \"m\"\npools = [\"d\"]\n";
    let canary = "[route.canary]\npool = \"c\"\nsteps = [{ weight = 50, soak = \"1h\" }]\n";
    let prefill = |keys: &str| format!("[route.prefill]\npool = \"f\"\n{keys}");
    let computes = "the canary of route \"m\" computes its prompts itself";
    let rooms = "connector sglang: engine of pool \"d\" is vllm";
    let warning = "connector nixl: engine of pool \"d\" is sglang, which fetches no KV by it";
    let sglang =
        format!("{pools}{route}{}", prefill("")).replace("name = \"d\"", "name = \"d\"\nengine = \"sglang\"");
    assert!(warns(&sglang, warning), "{sglang}");
    for (text, expected) in [
        (format!("{pools}{route}{canary}{}", prefill("")), [true, false]),
        (format!("{pools}{route}{canary}{}", prefill("when = \"never\"\n")), [false, false]),
        (format!("{pools}{route}{canary}{}", prefill("connector = \"sglang\"\n")), [true, true]),
    ] {
        assert_eq!([computes, rooms].map(|warning| warns(&text, warning)), expected, "{text}");
    }
}

#[test]
fn one_name_in_two_pools_is_a_warning() {
    let pool = |name: &str, replicas: &str| {
        format!(
            "[[pool]]\nname = \"{name}\"\nreplicas = [{replicas}]\n[[route]]\nmodel = \"{name}\"\npools = [\"{name}\"]\n"
        )
    };
    let replica =
        |port: u16, name: &str| format!("{{ url = \"http://127.0.0.1:{port}\", name = \"{name}\" }}");
    let old = pool("old", &replica(1, "gpu-0"));
    for (new, expected) in [(replica(2, "gpu-0"), true), (replica(2, "gpu-1"), false)] {
        let warning = "gateway.toml:9:12: warning: pools \"old\" and \"new\" both have a replica \"gpu-0\"";
        assert_eq!(warns(&format!("{old}{}", pool("new", &new)), warning), expected, "{new}");
    }
}

#[test]
fn a_setting_without_an_effect_is_a_warning() {
    let tenant = "[[tenant]]\nname = \"t\"\nkey_sha256 = []\nclient_names = [\"c\"]\nweight = 3\n";
    let unused = "[[pool]]\nname = \"q\"\nreplicas = [\"http://127.0.0.1:1\"]\ntls = {}\n[[route]]\nmodel = \"m\"\npools = [\"p\"]\n\
                  timeouts = { first_token = \"1s\" }\npolicy = \"round_robin\"\nclient_may = [\"priority\"]\nhedge = { after = \"2s\" }\n[slo.gold]\ne2e = \"1s\"\n";
    let said = check(&format!("{ONE_POOL}{unused}{tenant}"));
    assert_eq!(said.code, 0, "{}", said.err);
    for warning in [
        "gateway.toml:5:8: warning: no route uses pool \"q\"",
        "gateway.toml:6:12: warning: http://127.0.0.1:1 is in pools \"p\" and \"q\"",
        "gateway.toml:7:7: warning: pool.tls has no effect",
        "timeouts.first_token (1s) of route \"m\" ends requests before their ttft bound (2s)",
        "hedge has no effect: route \"m\" has one replica",
        "clients may set a priority on route \"m\", and nothing waits",
        "no route uses the slo class \"gold\"",
        "weight and priority of tenant \"t\" have no effect",
        "client_names of tenant \"t\" have no effect",
    ] {
        assert!(said.err.contains(warning), "{warning}\n{}", said.err);
    }
    assert!(said.out.contains("gateway.toml: ok, 9 warnings\n"), "{}", said.out);
    let denied = check_with(&format!("{ONE_POOL}{tenant}"), |args| args.deny_warnings = true, Style::Plain);
    assert_eq!(denied.code, 1);
    let route = |timeouts: &str| format!("{ONE_POOL}[[route]]\nmodel = \"m\"\n[route.timeouts]\n{timeouts}");
    let late = route("first_token = \"2m\"\ntotal = \"90s\"\n");
    assert!(warns(&late, "first_token (120s) of route \"m\" has no effect"));
    assert!(!warns(&route("total = \"20s\"\n"), "has no effect"), "of the default");
}

#[test]
fn a_word_that_names_one_route_and_is_the_model_of_another_is_a_warning() {
    let route = |name: &str, model: &str| format!("[[route]]\nname = \"{name}\"\nmodel = \"{model}\"\n");
    let crossed = "warning: \"big\" is the name of this route and the model of route \"chat\"";
    for (routes, expected) in [
        (route("chat", "big") + &route("big", "small"), true),
        (route("chat", "big") + &route("small", "small"), false),
        (route("big", "big") + &route("chat", "*"), false),
    ] {
        assert_eq!(warns(&format!("{ONE_POOL}{routes}"), crossed), expected, "{routes}");
    }
}

#[test]
fn what_a_tenant_never_gets_and_a_password_in_the_file_are_warnings() {
    let route = "[[route]]\nmodel = \"m\"\n";
    let tenant = |more: &str| format!("[[tenant]]\nname = \"t\"\nkey_sha256 = []\n{more}");
    let budget = "[[tenant.budget]]\ntokens = 5\n[[tenant.budget]]\ntokens = 5\nmodel = \"n\"\n";
    let cluster = |url: &str| format!("[cluster]\nurl = \"{url}\"\n");
    for (text, warnings) in [
        (
            route.to_owned() + &tenant("routes = []\n"),
            &["gateway.toml:9:10: warning: tenant \"t\" may use nothing"][..],
        ),
        (
            route.to_owned() + &tenant(budget),
            &[
                "gateway.toml:13:9: warning: this budget of tenant \"t\" never counts: no route that it may use takes model \"n\"",
            ],
        ),
        (tenant(budget), &[]),
        (route.replace("\"m\"", "\"n\"") + &tenant(budget), &[]),
        (
            cluster("redis://:hunter2@a"),
            &["gateway.toml:5:7: warning: cluster.url has its password in the file"],
        ),
        (cluster("redis://a"), &[]),
    ] {
        let shown = check(&format!("{ONE_POOL}{text}"));
        assert_eq!(
            (shown.code, shown.err.matches("warning: ").count()),
            (0, warnings.len()),
            "{}",
            shown.err
        );
        assert!(warnings.iter().all(|warning| shown.err.contains(warning)), "{}", shown.err);
        assert!(!shown.err.contains("hunter2"), "{}", shown.err);
    }
}

#[test]
fn an_isolation_that_keeps_less_apart_than_it_seems_is_a_warning() {
    let tenant = |name: &str, more: &str| format!("[[tenant]]\nname = \"{name}\"\nkey_sha256 = []\n{more}\n");
    let isolated = tenant("t", "cache_isolation = true");
    let triton = "[[pool]]\nname = \"q\"\nengine = \"triton\"\nreplicas = [\"http://127.0.0.1:2\"]\n[[route]]\nmodel = \"m\"\npools = [\"q\"]\n";
    let paths = "[server]\nextra_paths = [\"/v1/custom\"]\n";
    for (text, warning) in [
        (
            format!("{ONE_POOL}[routing]\ncache_isolation = true\n"),
            "cache_isolation has no effect: there is no [[tenant]]",
        ),
        (
            format!("{ONE_POOL}{}", tenant("t", "cache_group = \"g\"")),
            "cache_group of tenant \"t\" has no effect: it shares with everybody",
        ),
        (
            format!("{ONE_POOL}{triton}{isolated}"),
            "tenant \"t\" shares cached prompts in pool \"q\": engine triton takes no cache_salt",
        ),
        (format!("{paths}{ONE_POOL}{isolated}"), "tenant \"t\" shares cached prompts on server.extra_paths"),
        (format!("{ONE_POOL}{isolated}{}", tenant("u", "")), "routing.seed is no secret"),
    ] {
        assert!(warns(&text, warning), "{warning}\n{text}");
    }
    let quiet = check(&format!("{ONE_POOL}{isolated}"));
    assert!(!quiet.err.contains("cached prompts") && !quiet.err.contains("cache_"), "{}", quiet.err);
}

#[test]
fn content_that_would_be_recorded_nowhere_is_a_warning() {
    let route = |content| format!("[[route]]\nmodel = \"m\"\npools = [\"p\"]\ncontent = {content}\n");
    let tenant = |content| format!("[[tenant]]\nname = \"t\"\nkey_sha256 = []\ncontent = {content}\n");
    let trail = "[telemetry.content]\nfile = \"content.jsonl\"\n";
    for (text, warning) in [
        (route(true) + &tenant(false), "gateway.toml:7:11: warning: content = true has no effect"),
        (route(true) + &tenant(false) + trail, "[telemetry.content] records nothing: no [[tenant]]"),
        (route(false) + &tenant(true) + trail, "[telemetry.content] records nothing: no [[route]]"),
    ] {
        assert!(warns(&format!("{ONE_POOL}{text}"), warning), "{warning}\n{text}");
    }
    let quiet = check(&format!("{ONE_POOL}{}{}{trail}", route(true), tenant(true)));
    assert!(!quiet.err.contains("content"), "{}", quiet.err);
}

#[test]
fn prompts_leave_the_house_only_where_their_route_says_so() {
    let pool = |more: &str| {
        format!(
            "[[pool]]\nname = \"p\"\nreplicas = [\"http://127.0.0.1:2\"]\n[[pool]]\nname = \"far\"\nreplicas = [\"http://far.example\"]\n{more}[pool.outside]\nmodel = \"gpt-x\"\n"
        )
    };
    let route = |more: &str| format!("[[route]]\nmodel = \"m\"\npools = [\"p\", \"far\"]\n{more}");
    let whole = "standby = true\nengine = \"generic\"\nengine_api_key = \"env:FAR\"\n";
    for (text, fault) in [
        (
            pool(whole) + &route(""),
            "pool \"far\" has [pool.outside]: prompts of this route would leave the house",
        ),
        (pool("") + &route("outside = true\n"), "has no key of its own: clients' keys are never sent there"),
        (
            pool("engine = \"generic\"\n") + &route("outside = true\n"),
            "takes traffic only while the house's own cannot",
        ),
        (pool("standby = true\n") + &route("outside = true\n"), "set engine = \"generic\""),
    ] {
        let shown = check_without_secrets(&text);
        assert!(shown.code == 1 && shown.err.contains(fault), "{fault}\n{}", shown.err);
    }
    let good = pool(whole) + &route("outside = true\n");
    let shown = check_without_secrets(&good);
    assert_eq!(shown.code, 0, "{}", shown.err);
    assert!(
        shown.err.contains("prompts and the key of pool \"far\" go to http://far.example:80 without TLS"),
        "{}",
        shown.err
    );
    let none = "outside has no effect: route \"m\" has no pool with [pool.outside]";
    assert!(warns(&format!("{ONE_POOL}[[route]]\nmodel = \"m\"\noutside = true\n"), none));
}

#[test]
fn what_is_shipped_has_no_warnings() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/config");
    for name in ["reference.toml", "minimal.toml", "two-pools.toml", "tls.toml"] {
        let change = |args: &mut CheckArgs| {
            args.file = format!("{directory}/{name}").into();
            args.allow_missing_secrets = true;
        };
        let said = check_with("", change, Style::Plain);
        assert_eq!(said.code, 0, "{name}: {}", said.err);
        let meant =
            said.err.lines().filter(|line| line.contains("warning: ") && !line.contains("cannot read"));
        assert_eq!(meant.count(), 0, "{name}: {}", said.err);
    }
}

#[test]
fn a_secret_that_is_elsewhere_is_a_warning_where_that_is_allowed() {
    let file = format!(
        "[admin]\ntoken = \"env:NOT_SET_HERE\"\n[server]\ntls = {{ cert = \"no.pem\", key = \"no.key\" }}\n{ONE_POOL}"
    );
    let said = check(&file);
    assert_eq!(said.code, 1);
    let said = check_without_secrets(&file);
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.err.contains("warning: environment variable NOT_SET_HERE is not set"), "{}", said.err);
    assert!(said.err.contains("no.key"), "{}", said.err);
    let wrong = format!("[admin]\ntoken = \"in the file\"\n{ONE_POOL}");
    assert_eq!(check_without_secrets(&wrong).code, 1);
}

#[test]
fn a_canary_is_summed_up_with_its_shadow_step() {
    let pools = "[[pool]]\nname = \"old\"\nreplicas = [\"http://127.0.0.1:1\"]\n[[pool]]\nname = \"new\"\nrevision = \"r2\"\n\
                 replicas = [\"http://127.0.0.1:2\"]\n[[route]]\nmodel = \"m\"\npools = [\"old\"]\n[route.canary]\npool = \"new\"\n";
    let steps = "steps = [{ weight = 10, soak = \"10m\" }, { weight = 50, soak = \"24h\" }]\n";
    let shadow = "shadow = { weight = 5, soak = \"90s\" }\n";
    let with = check(&format!("{pools}{shadow}{steps}"));
    let line = "    canary new (revision r2): copies of 5 % for 90s, at least 200 of them; then 10 % for 10m, 50 % for 24h, then all; \
                on a breach it is rolled back\n";
    assert!(with.out.contains(line), "{}{}", with.out, with.err);
    let without = check(&format!("{pools}{steps}on_breach = \"pause\"\n"));
    let line =
        "    canary new (revision r2): 10 % for 10m, 50 % for 24h, then all; on a breach it is paused\n";
    assert!(without.out.contains(line), "{}{}", without.out, without.err);
    let split =
        pools.replace("[\"old\"]", "[{ name = \"old\", weight = 80 }, { name = \"new\", weight = 40 }]");
    let split = split.split("[route.canary]").next().unwrap();
    assert!(check(split).out.contains("to old (66.7 %) and new (33.3 %), "));
    let told = check_with(&format!("{pools}{shadow}{steps}"), |args| args.json = true, Style::Plain).out;
    let told: Value = serde_json::from_str(&told).unwrap();
    let canary = &told["summary"]["routes"][0]["canary"];
    assert_eq!((&canary["pool"], &canary["shadow"]["weight"]), (&json!("new"), &json!(5)), "{told}");
    assert_eq!(canary["steps"][1], json!({ "weight": 50, "soak_seconds": 86400.0 }), "{told}");
}
