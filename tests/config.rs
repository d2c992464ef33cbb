//! Configuration files as people write them: what is accepted, and what is said about the rest.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its shared functions too"
)]

use std::path::Path;
use std::time::Duration;

use tokenway::clock::Clock;
use tokenway::config::check::check_str;
use tokenway::config::load::{Source, load};
use tokenway::config::reload::reload;
use tokenway::config::watch::watch_files;
use tokenway::config::{
    AccessLog, Config, Figure, FigureSource, MAX_REPLICAS, ModelMatch, OtlpProtocol, Overrides, PolicyName,
    ProbeKind, parse_endpoint, paths,
};
use tokenway::request::dialect::Dialect;

const ONE_POOL: &str = "[[pool]]\nname = \"p\"\nreplicas = [\"http://127.0.0.1:1\"]\n";

fn no_env(_: &str) -> Option<String> {
    None
}

fn checked(text: &str) -> Config {
    check_str("f.toml", text, &no_env).unwrap_or_else(|faults| panic!("{faults}"))
}

/// The first line of each diagnostic, and the sign that each has a hint.
fn diagnostics(text: &str) -> Vec<String> {
    let faults = check_str("f.toml", text, &no_env).unwrap_err();
    assert!(faults.iter().all(|fault| !fault.hint.is_empty() && !fault.message.is_empty()));
    faults.iter().map(|fault| fault.to_string().lines().next().unwrap_or_default().to_owned()).collect()
}

#[track_caller]
fn assert_told(text: &str, expected: &[&str]) {
    assert_eq!(diagnostics(text), expected, "{text}");
}

/// `ONE_POOL` first, so that lines of `rest` count from 4.
fn with_pool(rest: &str) -> String {
    format!("{ONE_POOL}{rest}")
}

#[test]
fn a_file_with_one_pool_has_all_defaults() {
    let config = checked(ONE_POOL);
    assert_eq!(config.server.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.admin.listen.to_string(), "127.0.0.1:9090");
    assert_eq!((config.server.body_limit, config.server.body_memory), (32 << 20, 1 << 30));
    assert_eq!(config.server.heartbeat, None);
    assert!(config.server.route_info_headers);
    assert_eq!(
        config.slo.keys().map(|name| &**name).collect::<Vec<_>>(),
        ["batch", "interactive", "standard"]
    );
    assert_eq!(config.slo["interactive"].ttft.unwrap().per_prompt_token, Duration::from_micros(100));
    assert_eq!(config.routing.seed.reveal(), "tokenway");
    assert_eq!((config.classes.short.0, config.classes.medium.0), (1024, 8192));
    let pool = &config.pools[0];
    assert_eq!(
        (&*pool.revision, pool.engine.as_str(), &*pool.replicas[0].name),
        ("p", "vllm", "127.0.0.1:1")
    );
    assert_eq!((pool.probe.kind, pool.ejection.max_share), (ProbeKind::Auto, 0.5));
    let route = &config.routes[0];
    assert_eq!((&*route.name, &route.model, route.policy), ("*", &ModelMatch::Any, PolicyName::Latency));
    assert_eq!(route.timeouts.first_token, Duration::from_secs(60));
    assert!(route.client_may.timeout && !route.client_may.slo_class && route.ask_usage && route.required);
    assert_eq!(config.telemetry.access_log, AccessLog::Stdout);
    assert!(config.telemetry.otlp.is_none());
}

#[test]
fn the_reference_says_the_defaults() {
    let text = include_str!("../config/reference.toml");
    let pool_alone = "[[pool]]\nname = \"llama-8b-r1\"\nreplicas = [\"http://127.0.0.1:8001\", { url = \
                      \"http://127.0.0.1:8002\", name = \"gpu-2\" }]\n[[route]]\nmodel = \"llama-8b\"\n";
    assert_eq!(format!("{:?}", checked(text)), format!("{:?}", checked(pool_alone)));
}

#[test]
fn an_empty_queue_means_its_defaults() {
    let queue = checked(&with_pool("[[route]]\nmodel = \"m\"\n[route.queue]\n")).routes[0].queue;
    assert!(queue.is_some_and(|queue| queue.max_requests == 1000 && queue.isolate_long));
}

#[test]
fn a_tenants_routes_may_be_named_by_their_models() {
    let route = "[[route]]\nname = \"chat\"\nmodel = \"m\"\n";
    let tenant = "[[tenant]]\nname = \"t\"\nkey_sha256 = []\nroutes = [\"m\"]\n";
    let config = checked(&with_pool(&format!("{route}{tenant}")));
    assert_eq!(config.tenants[0].routes.as_deref(), Some(&["chat".into()][..]));
}

#[test]
fn an_engines_figures_are_data_and_what_is_none_is_told() {
    let pool = |lines: &str| format!("[[pool]]\nname = \"p\"\nreplicas = [\"http://127.0.0.1:1\"]\n{lines}");
    let config = checked(&pool(
        "engine = \"sglang\"\n[pool.engine_profile]\nrunning = \"renamed:running\"\nwaiting = []\n",
    ));
    let profile = &config.pools[0].engine_profile;
    let sources = |figure| profile.sources.iter().find(|(known, _)| *known == figure).map(|(_, s)| s.clone());
    assert_eq!(sources(Figure::Running), Some(vec![FigureSource::parse("renamed:running").unwrap()]));
    assert_eq!(sources(Figure::Waiting), None, "the engine does not tell it");
    assert_eq!(sources(Figure::KvCacheUsage), Some(vec![FigureSource::parse("sglang:token_usage").unwrap()]));
    assert_told(
        &pool(
            "engine = \"vlm\"\n[pool.engine_profile]\nruning = 1\nrunning = \"two words\"\nmetrics_path = \"metrics\"\nmetrics_port = 0\nwaiting = -1\n",
        ),
        &[
            "f.toml:4:10: unknown engine \"vlm\"; did you mean \"vllm\"?",
            "f.toml:6:1: unknown key \"runing\" in [pool.engine_profile]; did you mean \"running\"?",
            "f.toml:7:11: \"two words\" is not a metric",
            "f.toml:8:16: \"metrics\" is not a path",
            "f.toml:9:16: metrics_port is out of range",
            "f.toml:10:11: waiting must be zero or more",
        ],
    );
}

#[test]
fn tokens_and_certificates_are_checked_with_their_places() {
    let told = |rest: &str, expected: &[&str]| assert_told(&with_pool(rest), expected);
    told(
        "[auth.jwt]\naudience = []\njwks = \"file:nowhere.json\"\nalgorithms = [\"HS256\", \"none\"]\n",
        &[
            "f.toml:4:1: [auth.jwt] has no \"issuer\"",
            "f.toml:4:1: [auth.jwt] needs tenants that its tokens can name",
            "f.toml:5:12: audience is empty",
            "f.toml:6:8: cannot read nowhere.json: No such file or directory (os error 2)",
            "f.toml:7:15: unknown signature algorithm \"HS256\"; did you mean \"RS256\"?",
            "f.toml:7:24: unknown signature algorithm \"none\"",
        ],
    );
    let tenant = "[[tenant]]\nname = \"t\"\n";
    told(tenant, &["f.toml:4:1: [[tenant]] has no \"key_sha256\""]);
    let jwt = "[auth.jwt]\nissuer = \"i\"\naudience = \"a\"\njwks = \"https://idp/keys/?x=1\"\n";
    let config = checked(&with_pool(&format!("{tenant}{jwt}")));
    assert_eq!(config.jwt.unwrap().jwks.to_string(), "https://idp:443/keys/?x=1");
    let named = format!("{tenant}client_names = [\"a\"]\n");
    assert_eq!(&*checked(&with_pool(&named)).tenants[0].client_names[0], "a");
    let twice = format!("{named}[[tenant]]\nname = \"u\"\nclient_names = [\"a\"]\n");
    told(&twice, &["f.toml:9:17: \"a\" is listed already"]);
    let tls = |tls: &str| format!("[[pool]]\nname = \"p\"\nreplicas = [\"https://a\"]\ntls = {tls}\n");
    assert_told(
        &tls("{ cert = \"Cargo.toml\", server_name = \"a b\" }"),
        &[
            "f.toml:4:7: pool.tls has no \"key\"",
            "f.toml:4:16: Cargo.toml holds no certificate in PEM form",
            "f.toml:4:44: \"a b\" is no DNS name or address",
        ],
    );
    assert!(checked(&tls("{}")).pools[0].tls.is_some());
}

#[test]
fn answers_tell_tenants_nothing_of_the_fleet_unless_asked() {
    let tenant = format!("[[tenant]]\nname = \"t\"\nkey_sha256 = [\"{}\"]\n", "0".repeat(64));
    assert!(!checked(&with_pool(&tenant)).server.route_info_headers);
    let asked = format!("[server]\nroute_info_headers = true\n{tenant}");
    assert!(checked(&with_pool(&asked)).server.route_info_headers);
}

#[test]
fn all_faults_are_told_in_the_order_of_the_file() {
    assert_told(
        "[server]\nlisten = \"nowhere\"\nbody_limt = \"1MiB\"\nkeep_alive = 75\n[[pool]]\nname = \"p\"\nreplicas = []\n\
         [[route]]\nmodel = \"m\"\npools = [\"q\"]\npolicy = \"prefx\"\n",
        &[
            "f.toml:2:10: \"nowhere\" is not an IP address with a port",
            "f.toml:3:1: unknown key \"body_limt\" in [server]; did you mean \"body_limit\"?",
            "f.toml:4:14: keep_alive: expected a duration, found a whole number",
            "f.toml:7:12: a pool needs at least one replica",
            "f.toml:10:10: unknown pool \"q\"",
            "f.toml:11:10: unknown policy \"prefx\"; did you mean \"prefix\"?",
        ],
    );
}

#[test]
fn a_fault_shows_its_line_with_a_caret_and_a_hint() {
    let faults = check_str("f.toml", &with_pool("[timeouts]\nconnect = \"1 sec\"\n"), &no_env).unwrap_err();
    assert_eq!(
        faults.to_string(),
        "f.toml:5:11: \"1 sec\" is not a duration\n 5 | connect = \"1 sec\"\n   |           ^^^^^^^\n\
         hint: write a number above zero with its unit (us, ms, s, m, h, d): \"250ms\""
    );
}

#[test]
fn broken_toml_is_told_with_its_place() {
    for (text, place) in
        [("a = \n", "f.toml:1:"), ("[server\nx = 1\n", "f.toml:1:8: "), ("[a]\n[a]\n", "f.toml:2:")]
    {
        assert!(diagnostics(text)[0].starts_with(place), "{:?}", diagnostics(text));
    }
}

#[test]
fn a_table_that_is_written_once_too_often_or_with_too_few_brackets_is_named() {
    let faults = check_str("f.toml", &with_pool("[timeouts]\nconnect = \"1s\"\nconnect = \"2s\"\n"), &no_env)
        .unwrap_err();
    assert!(
        faults.to_string().contains("duplicate key") && faults.to_string().contains("keep one of the two"),
        "{faults}"
    );
    assert_told(
        &with_pool("[route]\nmodel = \"m\"\n"),
        &["f.toml:4:1: route: expected a list, found a table"],
    );
}

#[test]
fn faults_of_ports() {
    for (rest, expected) in [
        ("[server]\nlisten = 8080\n", "f.toml:5:10: listen: expected an address, found a whole number"),
        ("[server]\nheader_timeout = \"0s\"\n", "f.toml:5:18: \"0s\" must be above zero"),
        (
            "[server]\nbody_limit = \"2GiB\"\n",
            "f.toml:5:14: server.body_limit is more than server.body_memory",
        ),
        ("[server]\nmax_connections = 0\n", "f.toml:5:19: max_connections is out of range"),
        (
            "[server]\nextra_paths = [\"/sleep\"]\n",
            "f.toml:5:16: /sleep controls an engine and is never relayed from the data port",
        ),
        ("[server]\nextra_paths = [\"v1/x\"]\n", "f.toml:5:16: \"v1/x\" is not a path"),
        (
            "[server]\nextra_paths = [\"/v1/a\", \"/v1/{x}\"]\n",
            "f.toml:5:25: /v1/{x} would take /v1/models, which is answered by the gateway itself",
        ),
        (
            "[server]\nextra_paths = [\"/adapters/{x}\"]\n",
            "f.toml:5:16: /adapters/{x} controls an engine and is never relayed from the data port",
        ),
        (
            "[server]\nextra_paths = [\"/*\"]\n",
            "f.toml:5:16: \"/*\" has a wildcard, which would reach control endpoints of an engine",
        ),
        ("[server]\nroot_path = \"llm\"\n", "f.toml:5:13: \"llm\" is not a path prefix"),
        ("[server]\ncors_origins = [\"app\"]\n", "f.toml:5:17: \"app\" is not an origin"),
        ("[server]\ntrust_headers = [\"a b\"]\n", "f.toml:5:18: \"a b\" is not a header name"),
        ("[server]\ntls = { cert = \"no.pem\" }\n", "f.toml:5:7: server.tls has no \"key\""),
        (
            "[admin]\nlisten = \"0.0.0.0:9090\"\n",
            "f.toml:5:10: 0.0.0.0:9090 is not loopback and [admin] has no token",
        ),
        ("[admin]\ntoken = \"hunter2\"\n", "f.toml:5:9: a secret does not belong into the file"),
        (
            "[admin]\nmetrics_listen = \"127.0.0.1:9090\"\n",
            "f.toml:5:18: 127.0.0.1:9090 is taken by another port of this configuration",
        ),
        ("[admin]\ntoken = \"env:NOT_SET\"\n", "f.toml:5:9: environment variable NOT_SET is not set"),
        ("[serer]\n", "f.toml:4:2: unknown key \"serer\" in a configuration; did you mean \"server\"?"),
    ] {
        assert_eq!(diagnostics(&with_pool(rest))[0], expected, "{rest}");
    }
}

#[test]
fn a_key_that_no_header_takes_is_a_fault_and_is_not_repeated() {
    let env = |name: &str| (name == "KEY").then(|| "hunter2\nhunter3".to_owned());
    for text in [
        "[admin]\ntoken = \"env:KEY\"\n",
        "[[pool]]\nname = \"q\"\nreplicas = [\"http://a:1\"]\nengine_api_key = \"env:KEY\"\n",
    ] {
        let said = check_str("f.toml", text, &env).unwrap_err().to_string();
        assert!(said.contains("env:KEY has a line break") && !said.contains("hunter"), "{said}");
    }
}

#[test]
fn spaces_around_a_key_are_no_part_of_it() {
    let check = |value: &str| {
        check_str("f.toml", &with_pool("[admin]\ntoken = \"env:KEY\"\n"), &|_| Some(value.to_owned()))
    };
    let config = check(" hun ter \t").unwrap();
    assert_eq!(config.admin.token.as_ref().map(|token| token.reveal()), Some("hun ter"));
    let said = check("  ").unwrap_err().to_string();
    assert!(said.contains("env:KEY is empty"), "{said}");
}

#[test]
fn a_secret_in_the_file_is_not_repeated() {
    for rest in [
        "[admin]\ntoken = \"hunter2\"\n",
        "[admin]\ntoken = hunter2\n",
        "[[tenant]]\nname = \"a\"\nkey_sha256 = [\"hunter2\"]\n",
        "[[tenant]]\nname = \"a\"\nkey_sha256 = [\n  \"hunter2\",\n]\n",
        "[[tenant]]\nname = \"a\"\nkey_sha256 = \"hunter2\"\n",
        "[[tenant]]\nname = \"a\"\nkeys = [\"hunter2\"]\n",
        "[[pool]]\nname = \"q\"\nreplicas = [\"http://me:hunter2@a:1\"]\n",
        "[[pool]]\nname = \"q\"\nreplicas = [\"htp://me:hunter2@a:1\"]\n",
        "[[pool]]\nname = \"q\"\nreplicas = [{ ur = \"http://hunter2@a:1\" }]\n",
        "[drift]\nwebhook = \"http://me:hunter2@a b:1\"\n",
    ] {
        let faults = check_str("f.toml", &with_pool(rest), &no_env).unwrap_err();
        assert!(!faults.to_string().contains("hunter2"), "{faults}");
    }
}

#[test]
fn what_is_empty_is_no_path_and_no_name() {
    let tenant = "[[tenant]]\nname = \"t\"\nkey_sha256 = []\n";
    let jwt =
        |keys: &str| format!("{tenant}[auth.jwt]\naudience = \"a\"\njwks = \"https://a/keys\"\n{keys}\n");
    for (rest, expected) in [
        ("[telemetry.content]\nfile = \"\"\n".to_owned(), "f.toml:5:8: file is empty"),
        ("[drift]\nstate = \"\"\n".to_owned(), "f.toml:5:9: state is empty"),
        ("[cluster]\nurl = \"redis://a\"\nname = \"\"\n".to_owned(), "f.toml:6:8: name is empty"),
        (
            "[[tenant]]\nname = \"none\"\nkey_sha256 = []\n".to_owned(),
            "f.toml:5:8: \"none\" stands for no name in metrics and logs",
        ),
        (jwt("issuer = \"\""), "f.toml:10:10: issuer is empty"),
        (jwt("issuer = \"i\"\ntenant_claim = \"\""), "f.toml:11:16: tenant_claim is empty"),
    ] {
        assert_told(&with_pool(&rest), &[expected]);
    }
}

#[test]
fn content_may_be_switched_off_by_the_key_that_was_a_switch() {
    assert_eq!(checked(&with_pool("[telemetry]\ncontent = false\n")).telemetry.content, None);
}

#[test]
fn two_ports_at_one_address_are_refused() {
    let taken = |addr: &str| format!("{addr} is taken by another port of this configuration");
    let spans = "[telemetry.engine_spans]\nlisten = \"127.0.0.1:8080\"\n";
    for (rest, expected) in [
        ("[admin]\nlisten = \"127.0.0.1:8080\"\n", format!("f.toml:5:10: {}", taken("127.0.0.1:8080"))),
        ("[server]\nlisten = \"0.0.0.0:9090\"\n", format!("f.toml:5:10: {}", taken("127.0.0.1:9090"))),
        (spans, format!("f.toml:5:10: {}", taken("127.0.0.1:8080"))),
    ] {
        assert_told(&with_pool(rest), &[&expected]);
    }
    for rest in ["[server]\nlisten = \"[::1]:9090\"\n", "[server]\nlisten = \"127.0.0.2:9090\"\n"] {
        checked(&with_pool(rest));
    }
    let source = Source::Upstreams(vec![parse_endpoint("http://127.0.0.1:1").unwrap()]);
    let one = "127.0.0.1:9090".parse().ok();
    let flags = Overrides { listen: one, ..Overrides::default() };
    let error = load(&source, &flags, &no_env).unwrap_err().to_string();
    assert!(error.contains(&taken("127.0.0.1:9090")), "{error}");
}

#[test]
fn faults_of_bounds() {
    for (rest, expected) in [
        ("[routing]\nseed = \"\"\n", "f.toml:5:8: seed is empty"),
        ("[retry]\nbudget = 1.5\n", "f.toml:5:10: budget must be from 0 to 1"),
        ("[retry]\nattempts = -1\n", "f.toml:5:12: attempts is out of range"),
        ("[classes]\nshort = 9000\n", "f.toml:5:9: classes.short (9000) is above classes.medium (8192)"),
        (
            "[slo.interactive]\nttft = { per_prompt_token = \"1ms\" }\n",
            "f.toml:5:8: slo.*.ttft has no \"base\"",
        ),
        (
            "[slo.interactive]\nttf = \"1s\"\n",
            "f.toml:5:1: unknown key \"ttf\" in [slo.*]; did you mean \"ttft\"?",
        ),
        ("[slo.gold]\nitl = \"100ms\"\n", "f.toml:5:7: itl: expected a table of percentiles, found a string"),
        ("[slo.gold]\nitl = {}\n", "f.toml:5:7: itl names no percentile"),
        (
            "[slo.gold]\nitl = { p9 = \"100ms\" }\n",
            "f.toml:5:9: unknown key \"p9\" in slo.*.itl; did you mean \"p90\"?",
        ),
        (
            "[slo.gold]\nitl = { p50 = \"200ms\", p99 = \"100ms\" }\n",
            "f.toml:5:30: itl.p99 (100ms) is below itl.p50 (200ms)",
        ),
        (
            "[slo.gold]\nttft = \"2s\"\ne2e = \"1s\"\n",
            "f.toml:5:8: ttft (2s) is above e2e (1s), the bound of the whole request",
        ),
        (
            "[slo.gold]\nitl = { p99 = \"2s\" }\ntpot = \"1s\"\ne2e = \"1s\"\n",
            "f.toml:5:7: itl (2s) is above e2e (1s), the bound of the whole request",
        ),
        ("[slo.gold]\nttft = 5\n", "f.toml:5:8: ttft: expected a duration, found a whole number"),
        (
            "[telemetry.sampling]\nkeep = [\"errors\"]\n",
            "f.toml:5:9: unknown reason \"errors\"; did you mean \"error\"?",
        ),
        (
            "[telemetry.content]\nfiles = 2\n",
            "f.toml:4:1: [telemetry.content] has neither \"file\" nor otlp = true",
        ),
        (
            "[telemetry.content]\notlp = true\n",
            "f.toml:4:1: [telemetry.content] has otlp = true, and no collector takes log records",
        ),
        ("[telemetry]\ncontent = true\n", "f.toml:5:11: content: expected a table, found true or false"),
        (
            "[telemetry.content]\nfile = \"f\"\nredact = [\"[a\"]\n",
            "f.toml:6:11: no regular expression: error: unclosed character class",
        ),
        (
            "[telemetry.content]\nfile = \"f\"\nredact = [\"a*\"]\n",
            "f.toml:6:11: this expression matches where there is nothing",
        ),
        ("[hook]\ntimeout = \"1s\"\n", "f.toml:4:1: [hook] has neither \"before\" nor \"after\""),
        ("[hook]\nbefore = \"a:1\"\n", "f.toml:5:10: \"a:1\" does not start with http:// or https://"),
        ("[hook]\nbefore = \"http://a:1\"\nroutes = [\"chat\"]\n", "f.toml:6:11: unknown route \"chat\""),
        (
            "[hook]\nbefore = \"http://a:1\"\non_failure = \"opn\"\n",
            "f.toml:6:14: unknown on_failure \"opn\"; did you mean \"open\"?",
        ),
        (
            "[telemetry]\naccess_log = \"stdot\"\n",
            "f.toml:5:14: unknown access log \"stdot\"; did you mean \"stdout\"?",
        ),
        (
            "[telemetry.otlp]\nprotocol = \"gprc\"\n",
            "f.toml:5:12: unknown protocol \"gprc\"; did you mean \"grpc\"?",
        ),
        (
            "[telemetry.engine_spans]\nlisten = \"4319\"\n",
            "f.toml:5:10: \"4319\" is not an IP address with a port",
        ),
        (
            "[telemetry.otlp]\nendpoint = \"c:4318\"\n",
            "f.toml:5:12: \"c:4318\" does not start with http:// or https://",
        ),
    ] {
        assert_told(&with_pool(rest), &[expected]);
    }
}

#[test]
fn faults_of_pools() {
    let pool = |rest: &str| format!("[[pool]]\nname = \"p\"\n{rest}\n");
    for (text, expected) in [
        (String::new(), "f.toml:1:1: no [[pool]] is configured"),
        ("[[pool]]\nreplicas = [\"http://a\"]\n".to_owned(), "f.toml:1:1: [[pool]] has no \"name\""),
        (pool(""), "f.toml:1:1: [[pool]] has no replicas"),
        (pool("replicas = [\"http://a:1\", \"http://a:1/\"]"), "f.toml:3:27: http://a:1 is listed twice"),
        (
            pool(
                "replicas = [{ url = \"http://a:1\", name = \"x\" }, { url = \"http://a:2\", name = \"x\" }]",
            ),
            "f.toml:3:49: two replicas are named \"x\"",
        ),
        (pool("replicas = [\"a:1\"]"), "f.toml:3:13: \"a:1\" does not start with http:// or https://"),
        (pool("replicas = \"http://a:1\""), "f.toml:3:12: replicas: expected a list, found a string"),
        (pool("replicas = [7]"), "f.toml:3:13: replicas: expected a URL, found a whole number"),
        (pool("replicas = [{ ur = \"http://a:1\" }]"), "f.toml:3:13: pool.replicas has no \"url\""),
        (
            with_pool(ONE_POOL) + "[[route]]\nmodel = \"*\"\npools = [\"p\"]\n",
            "f.toml:4:1: two pools are named \"p\"",
        ),
        (
            with_pool("[pool.probe]\nkind = \"completon\"\n"),
            "f.toml:5:8: unknown probe kind \"completon\"; did you mean \"completion\"?",
        ),
    ] {
        assert_eq!(diagnostics(&text)[0], expected, "{text}");
    }
}

#[test]
fn sources_of_replicas_are_checked_without_asking_them() {
    let pool = |rest: &str| format!("[[pool]]\nname = \"p\"\n{rest}\n");
    for (rest, expected) in [
        ("dns = \"http://a\"", "f.toml:3:7: \"http://a\" has no port, and address records tell none"),
        ("dns = \"a:1\"", "f.toml:3:7: \"a:1\" does not start with http:// or https://"),
        (
            "dns = \"http://10.0.0.1:1\"",
            "f.toml:3:7: \"http://10.0.0.1:1\" is an address, not a name to look up",
        ),
        (
            "dns = \"srv+http://a:1\"",
            "f.toml:3:7: \"srv+http://a:1\" has a port, which SRV records bring along",
        ),
        ("dns = \"\"", "f.toml:3:7: \"\" is not a URL"),
        (
            "dns = \"https://a:1\"",
            "f.toml:3:7: replicas found by address have no name that a certificate could hold",
        ),
        ("dns = { server = \"127.0.0.1:53\" }", "f.toml:3:7: pool.dns has no \"url\""),
        (
            "dns = { url = \"http://a:1\", server = \"127.0.0.1\" }",
            "f.toml:3:38: \"127.0.0.1\" is no address with a port",
        ),
        ("file = \"\"", "f.toml:3:8: file is empty"),
        ("file = \"r.yaml\"", "f.toml:3:8: \"r.yaml\" does not end in .json, the one form that is read"),
        ("kubernetes = { service = \"s\" }", "f.toml:3:14: pool.kubernetes has no \"namespace\""),
        (
            "kubernetes = { namespace = \"n\", service = \"a/b\" }",
            "f.toml:3:43: \"a/b\" is not a name that Kubernetes has",
        ),
        (
            "kubernetes = { namespace = \"n\", service = \"s\", port = 0 }",
            "f.toml:3:55: port is out of range",
        ),
        (
            "kubernetes = { namespace = \"n\", inference_pool = \"i\", service = \"s\" }",
            "f.toml:3:65: replicas are those of a Service or of an InferencePool",
        ),
        (
            "kubernetes = { namespace = \"n\", inference_pool = \"i\", port = 80 }",
            "f.toml:3:62: the InferencePool's targetPorts tell the ports",
        ),
        ("dns = \"http://a:1\"\ndata_parallel = 0", "f.toml:4:17: data_parallel is out of range"),
    ] {
        assert_eq!(diagnostics(&pool(rest))[0], expected, "{rest}");
    }
    for rest in [
        "dns = \"http://a.b:1/base\"",
        "dns = \"srv+https://_http._tcp.a.b\"\nreplicas = []",
        "dns = \"https://a:1\"\ntls = { server_name = \"a\" }",
        "file = \"no-such-file.json\"\ndata_parallel = \"auto\"",
        "kubernetes = { namespace = \"n\", service = \"s\", port = \"http\" }\ndata_parallel = 4",
        "kubernetes = { namespace = \"n\", service = \"s\" }",
        "kubernetes = { namespace = \"n\", inference_pool = \"i\", scheme = \"https\" }",
    ] {
        let text = pool(rest);
        assert!(check_str("f.toml", &text, &|_| None).is_ok(), "{text}");
    }
}

#[test]
fn a_pool_has_no_more_replicas_than_the_fleet_can_hold() {
    let pool = |replicas: usize| {
        let urls: Vec<_> = (1..=replicas).map(|port| format!("\"http://a:{port}\"")).collect();
        format!("[[pool]]\nname = \"p\"\nreplicas = [{}]\n", urls.join(", "))
    };
    let clock = Clock::start();
    let began = clock.now();
    assert_eq!(checked(&pool(MAX_REPLICAS)).pools[0].replicas.len(), MAX_REPLICAS);
    // Milliseconds where nothing compares each with each; generous, for busy machines.
    assert!(clock.now().since(began) < Duration::from_secs(5));
    assert_told(&pool(2_100), &["f.toml:3:12: pool \"p\" has 2100 replicas, more than 2048"]);
}

#[test]
fn faults_of_routes_and_tenants() {
    let digest = "0".repeat(64);
    for (rest, expected) in [
        ("[[route]]\nname = \"r\"\n", "f.toml:4:1: [[route]] has no \"model\""),
        ("[[route]]\nmodel = \"m\"\n[[route]]\nmodel = \"m\"\n", "f.toml:6:1: two routes take model \"m\""),
        (
            "[[route]]\nmodel = \"m\"\npools = [{ name = \"p\", weight = 0 }]\n",
            "f.toml:6:9: all weights are zero: no replica would get a request",
        ),
        ("[[route]]\nmodel = \"m\"\npools = [\"p\", \"p\"]\n", "f.toml:6:15: the route has this pool twice"),
        (
            "[[route]]\nmodel = \"m\"\nslo = \"interactiv\"\n",
            "f.toml:6:7: unknown slo class \"interactiv\"; did you mean \"interactive\"?",
        ),
        ("[[route]]\nmodel = \"m\"\nclient_may = [\"prio\"]\n", "f.toml:6:15: unknown permission \"prio\""),
        (
            "[[route]]\nmodel = \"m\"\nstage_budget = { prefil = \"300ms\" }\n",
            "f.toml:6:18: unknown key \"prefil\" in route.stage_budget; did you mean \"prefill\"?",
        ),
        ("[[route]]\nmodel = \"m\"\nstage_budget = {}\n", "f.toml:6:16: the budget has no stage"),
        (
            "[[route]]\nmodel = \"m\"\nslo = \"interactive\"\nstage_budget = { engine_queue = \"300ms\", prefill = \"250ms\" }\n",
            "f.toml:7:16: the stages before the first token have 550ms, 110 % of the route's ttft bound of 500ms",
        ),
        (
            "[[route]]\nmodel = \"m\"\nslo = \"batch\"\nstage_budget = { decode = \"8m\", relay = \"4m\" }\n",
            "f.toml:7:16: all stages have 720s, 120 % of the route's e2e bound of 600s",
        ),
        (
            "[[route]]\nmodel = \"m\"\nmigrate = \"yes\"\n",
            "f.toml:6:11: migrate: expected true or false, found a string",
        ),
        (
            "[[route]]\nmodel = \"m\"\nclient_may = [\"timeout\", \"priorty\"]\n",
            "f.toml:6:26: unknown permission \"priorty\"; did you mean \"priority\"?",
        ),
        (
            "[[route]]\nmodel = \"m\"\n[route.canary]\npool = \"another\"\nsteps = [{ weight = 10, soak = \"1m\" }]\n",
            "f.toml:7:8: unknown pool \"another\"",
        ),
        (
            "[[tenant]]\nname = \"t\"\nkey_sha256 = [\"9f86d081884c7d65…\"]\n",
            "f.toml:6:15: a key digest must be 64 hexadecimal digits",
        ),
        (
            "[[tenant]]\nname = \"t\"\nkey_sha256 = []\nroutes = [\"chat\"]\n",
            "f.toml:7:11: unknown route \"chat\"",
        ),
        (
            "[[tenant]]\nname = \"t\"\nkey_sha256 = []\nlimits = { concurrency = 0 }\n",
            "f.toml:7:26: concurrency is out of range",
        ),
        ("[[tenant]]\nname = \"t\"\nkey_sha256 = []\nweight = 0\n", "f.toml:7:10: weight is out of range"),
        (
            "[[tenant]]\nname = \"t\"\nkey_sha256 = []\npriority = 101\n",
            "f.toml:7:12: priority is out of range",
        ),
    ] {
        assert_told(&with_pool(rest), &[expected]);
    }
    let twice = format!("[[tenant]]\nname = \"t\"\nkey_sha256 = [\"{digest}\", \"{digest}\"]\n");
    assert_told(&with_pool(&twice), &["f.toml:6:83: this key is listed already"]);
}

#[test]
fn faults_of_canaries() {
    let step = "steps = [{ weight = 10, soak = \"1m\" }]";
    let canary = |lines: &str| {
        format!(
            "[[pool]]\nname = \"a\"\nreplicas = [\"http://127.0.0.1:1\"]\n[[pool]]\nname = \"b\"\n\
             replicas = [\"http://127.0.0.1:2\"]\n[[route]]\nmodel = \"m\"\npools = [\"a\"]\n[route.canary]\n{lines}\n"
        )
    };
    for (lines, expected) in [
        (format!("pool = \"b\"\n{step}"), None),
        (format!("pool = \"b\"\n{step}\nmax_ttft_ratio = {{ p99 = 1.0 }}"), None),
        ("pool = \"b\"".to_owned(), Some("f.toml:10:1: [route.canary] has no steps")),
        ("pool = \"b\"\nsteps = []".to_owned(), Some("f.toml:12:9: a canary needs at least one step")),
        (
            "pool = \"b\"\nsteps = [{ weight = 20, soak = \"1m\" }, { weight = 20, soak = \"1m\" }]"
                .to_owned(),
            Some("f.toml:12:51: weights of canary steps must increase"),
        ),
        (
            "pool = \"b\"\nsteps = [{ weight = 50, soak = \"1m\" }, { weight = 100, soak = \"1m\" }]"
                .to_owned(),
            Some("f.toml:12:51: a step of 100 leaves no baseline to judge the canary by"),
        ),
        (
            "pool = \"b\"\nsteps = [{ weight = 120, soak = \"1m\" }]".to_owned(),
            Some("f.toml:12:21: weight is out of range"),
        ),
        (
            format!("pool = \"a\"\n{step}"),
            Some("f.toml:10:1: the canary has no baseline: the route has no other pool with a weight"),
        ),
        (
            format!("pool = \"b\"\n{step}\nsoak = \"1m\""),
            Some("f.toml:13:1: unknown key \"soak\" in [route.canary]"),
        ),
        (
            format!("pool = \"b\"\n{step}\non_breach = \"stop\""),
            Some("f.toml:13:13: unknown action \"stop\""),
        ),
        (
            format!("pool = \"b\"\n{step}\nmax_ttft_ratio = {{ p99 = 0.9 }}"),
            Some("f.toml:13:26: p99 must be from 1 to 100: it is a multiple of the baseline"),
        ),
        (
            format!("pool = \"b\"\n{step}\nfalse_rollback_rate = 0"),
            Some("f.toml:13:23: false_rollback_rate must be from 0.000001 to 0.5"),
        ),
    ] {
        let faults = check_str("f.toml", &canary(&lines), &|_| None).err();
        let first = faults.and_then(|faults| faults.iter().next().map(ToString::to_string));
        assert_eq!(first.as_deref().and_then(|text| text.lines().next()), expected, "{lines}");
    }
}

#[test]
fn two_keys_that_name_one_file_are_refused() {
    let file = |drift: &str, canary: &str| {
        format!(
            "[drift]\nstate = {drift:?}\n[[pool]]\nname = \"a\"\nreplicas = [\"http://127.0.0.1:1\"]\n[[pool]]\nname = \"b\"\n\
             replicas = [\"http://127.0.0.1:2\"]\n[[route]]\nmodel = \"m\"\npools = [\"a\"]\n[route.canary]\npool = \"b\"\n\
             steps = [{{ weight = 10, soak = \"1m\" }}]\nstate = {canary:?}\n"
        )
    };
    let itself = "is the configuration file itself";
    for (drift, canary, rest, expected) in [
        ("f.toml", "c.json", "", format!("f.toml:2:9: drift.state {itself}")),
        ("d.json", "./f.toml", "", format!("f.toml:15:9: route.canary.state {itself}")),
        (
            "s.json",
            "src/../s.json",
            "",
            "f.toml:15:9: route.canary.state is the file of drift.state".to_owned(),
        ),
        (
            "d.json",
            "c.json",
            "[telemetry]\naccess_log = \"./c.json\"\n",
            "f.toml:15:9: route.canary.state is the file of telemetry.access_log".to_owned(),
        ),
        (
            "d.json",
            "src/admin/page/favicon.svg",
            "[admin]\ntoken = \"file:src/admin/page/favicon.svg\"\n",
            "f.toml:15:9: route.canary.state is a file that another key reads".to_owned(),
        ),
    ] {
        assert_told(&format!("{}{rest}", file(drift, canary)), &[&expected]);
    }
    let other = "[[route]]\nmodel = \"n\"\npools = [\"a\"]\n[route.canary]\npool = \"b\"\n\
                 steps = [{ weight = 10, soak = \"1m\" }]\nstate = \"c.json\"\n";
    checked(&format!("{}{other}", file("d.json", "c.json")));
}

#[test]
fn files_that_the_start_opens_are_looked_at() {
    let gone = "no-such-directory is no directory";
    for (rest, expected) in [
        (
            "[cluster]\nurl = \"rediss://a\"\nca = \"Cargo.toml\"\n",
            "f.toml:6:6: Cargo.toml holds no certificate in PEM form",
        ),
        ("[telemetry.content]\nfile = \"src\"\n", "f.toml:5:8: src is a directory"),
        ("[telemetry]\naccess_log = \"./src\"\n", "f.toml:5:14: ./src is a directory"),
        (
            "[telemetry]\naccess_log = \"no-such-directory/log\"\n",
            &format!("f.toml:5:14: cannot write no-such-directory/log: {gone}"),
        ),
    ] {
        assert_told(&with_pool(rest), &[expected]);
    }
}

#[test]
fn faults_of_drift() {
    for (rest, expected) in [
        ("[drift]\nblock = \"24h\"\nwindow = \"1h\"\n", "f.toml:6:1: unknown key \"window\" in [drift]"),
        (
            "[drift]\nbaseline = { from = \"7d\", to = \"35d\" }\n",
            "f.toml:5:12: drift.baseline.from must be at least three blocks before drift.baseline.to",
        ),
        (
            "[drift]\nblock = \"24h\"\nbaseline = { to = \"1h\" }\n",
            "f.toml:6:12: drift.baseline.to is under three blocks: a drift would be part of its own baseline",
        ),
        ("[drift]\nblock = \"1m\"\n", "f.toml:5:9: drift.baseline.from is more than a hundred blocks ago"),
        ("[drift]\navailability = 1.0\n", "f.toml:5:16: drift.availability must be from 0.5 to 0.999999"),
        (
            "[drift]\nwebhook = \"alertmanager\"\n",
            "f.toml:5:11: \"***\" does not start with http:// or https://",
        ),
    ] {
        assert_told(&with_pool(rest), &[expected]);
    }
}

#[test]
fn two_pools_without_a_route_are_ambiguous() {
    let text = with_pool("[[pool]]\nname = \"q\"\nreplicas = [\"http://127.0.0.1:2\"]\n");
    assert_told(&text, &["f.toml:1:1: several pools and no [[route]]: nothing says which model goes where"]);
}

#[test]
fn a_class_in_the_file_is_what_the_file_says() {
    let config = checked(&with_pool("[slo.interactive]\ne2e = \"9s\"\n[slo.gold]\nttft = \"100ms\"\n"));
    assert_eq!(config.slo["interactive"].ttft, None);
    assert_eq!(config.slo["gold"].ttft.unwrap().base, Duration::from_millis(100));
    assert!(config.slo["standard"].ttft.is_some());
}

#[test]
fn the_export_follows_file_then_environment() {
    let env = |name: &str| match name {
        "OTEL_EXPORTER_OTLP_ENDPOINT" => Some("http://env:4318".to_owned()),
        "OTEL_EXPORTER_OTLP_HEADERS" => Some("x-from=env".to_owned()),
        _ => None,
    };
    for (rest, endpoint) in [
        ("", "http://env:4318/v1/traces"),
        ("[telemetry.otlp]\n", "http://env:4318/v1/traces"),
        ("[telemetry.otlp]\nendpoint = \"http://file:4318/\"\n", "http://file:4318/v1/traces"),
        ("[telemetry.otlp]\nendpoint = \"http://file:4318/v1/traces\"\n", "http://file:4318/v1/traces"),
    ] {
        let config = check_str("f.toml", &with_pool(rest), &env).unwrap();
        let otlp = config.telemetry.otlp.unwrap();
        assert_eq!((&*otlp.traces.endpoint, otlp.traces.headers.len()), (endpoint, 1), "{rest}");
    }
    for (rest, endpoint) in [
        ("protocol = \"grpc\"\n", "http://127.0.0.1:4317"),
        ("protocol = \"grpc\"\nendpoint = \"http://c:4317/\"\n", "http://c:4317"),
        ("protocol = \"http/protobuf\"\n", "http://127.0.0.1:4318/v1/traces"),
    ] {
        let otlp = checked(&with_pool(&format!("[telemetry.otlp]\n{rest}"))).telemetry.otlp.unwrap();
        assert_eq!(otlp.traces.endpoint, endpoint, "{rest}");
        assert_eq!(otlp.traces.protocol == OtlpProtocol::Grpc, rest.contains("grpc"), "{rest}");
    }
    let alone = checked(&with_pool("[telemetry.otlp]\n")).telemetry.otlp.unwrap();
    assert_eq!(alone.traces.endpoint, "http://127.0.0.1:4318/v1/traces");
}

#[test]
fn log_records_do_not_travel_as_spans_to_another_collector() {
    let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t:4318/v1/traces");
    let traces_key = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "authorization=traces");
    let traces_timeout = ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "1000");
    let logs = ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://l:4317");
    let logs_key = ("OTEL_EXPORTER_OTLP_LOGS_HEADERS", "authorization=logs");
    let logs_timeout = ("OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", "2000");
    let logs_protocol = ("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "grpc");
    let all_key = ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=all");
    let of_file = "[telemetry.otlp]\nendpoint = \"http://f:4318\"\nheaders = { authorization = \"file\" }\n";
    let cases: [(&str, &[(&str, &str)], _); 5] = [
        ("", &[traces, traces_key, traces_timeout, logs], ("http://l:4317", "", 10_000)),
        ("", &[traces, traces_key, logs, all_key], ("http://l:4317", "all", 10_000)),
        (
            "",
            &[traces, traces_key, traces_timeout, logs, logs_key, logs_timeout, logs_protocol],
            ("http://l:4317", "logs", 2000),
        ),
        ("", &[traces, traces_key, traces_timeout], ("http://t:4318/v1/logs", "traces", 1000)),
        (of_file, &[traces_key, logs, logs_key], ("http://f:4318/v1/logs", "file", 10_000)),
    ];
    for (rest, variables, (endpoint, key, timeout)) in cases {
        let env = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        let logs = check_str("f.toml", &with_pool(rest), &env).unwrap().telemetry.otlp.unwrap().logs.unwrap();
        let keys: Vec<&[u8]> = logs.headers.iter().map(|(_, value)| value.as_bytes()).collect();
        assert_eq!((&*logs.endpoint, logs.timeout.as_millis()), (endpoint, timeout), "{variables:?}");
        assert_eq!(keys.concat(), key.as_bytes(), "{variables:?}");
        let is_grpc = variables.contains(&logs_protocol);
        assert_eq!(logs.protocol == OtlpProtocol::Grpc, is_grpc, "{variables:?}");
    }
}

#[test]
fn the_examples_check_out() {
    let directory = tempfile::tempdir().unwrap();
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(directory.path().join("server.pem"), key.cert.pem()).unwrap();
    std::fs::write(directory.path().join("server.key"), key.signing_key.serialize_pem()).unwrap();
    for example in ["minimal.toml", "two-pools.toml", "tls.toml", "reference.toml"] {
        let copy = directory.path().join(example);
        std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(example), &copy).unwrap();
        let config = load(&Source::File(copy), &Overrides::default(), &no_env);
        let config = config.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(config.server.tls.is_some(), example == "tls.toml");
    }
}

#[test]
fn tls_files_are_looked_at() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.toml");
    std::fs::write(directory.path().join("empty.pem"), "").unwrap();
    std::fs::write(&file, with_pool("[server]\ntls = { cert = \"empty.pem\", key = \"gone.key\" }\n"))
        .unwrap();
    let diagnostics = load(&Source::File(file), &Overrides::default(), &no_env).unwrap_err().to_string();
    assert!(
        diagnostics.contains("gateway.toml:5:16: ") && diagnostics.contains("empty.pem holds no certificate"),
        "{diagnostics}"
    );
    assert!(
        diagnostics.contains("gateway.toml:5:35: cannot read ") && diagnostics.contains("gone.key"),
        "{diagnostics}"
    );
}

#[test]
fn a_certificate_and_a_key_that_do_not_belong_together_are_found_with_their_place() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.toml");
    for name in ["one", "two"] {
        let pair = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        std::fs::write(directory.path().join(format!("{name}.pem")), pair.cert.pem()).unwrap();
        std::fs::write(directory.path().join(format!("{name}.key")), pair.signing_key.serialize_pem())
            .unwrap();
    }
    let loaded = |of_server: &str, of_pool: &str| {
        let files = |key: &str| format!("tls = {{ cert = \"one.pem\", key = \"{key}\" }}\n");
        let text = format!(
            "[server]\n{}[[pool]]\nname = \"p\"\nreplicas = [\"https://gpu-1:8000\"]\n{}[[route]]\nmodel = \"*\"\npools = [\"p\"]\n",
            files(of_server),
            files(of_pool)
        );
        std::fs::write(&file, text).unwrap();
        load(&Source::File(file.clone()), &Overrides::default(), &no_env).map_err(|error| error.to_string())
    };
    assert!(loaded("one.key", "one.key").is_ok());
    for (of_server, of_pool, place) in [("two.key", "one.key", "2:33"), ("one.key", "two.key", "6:33")] {
        let found = loaded(of_server, of_pool).unwrap_err();
        let expected = [format!("gateway.toml:{place}: "), "one.pem".to_owned(), "two.key".to_owned()];
        assert!(expected.iter().all(|part| found.contains(part)), "{found}");
        assert!(found.contains("do not belong together"), "{found}");
    }
}

#[test]
fn a_reload_keeps_what_needs_a_restart_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.toml");
    let source = Source::File(file.clone());
    std::fs::write(&file, ONE_POOL).unwrap();
    let old = load(&source, &Overrides::default(), &no_env).unwrap();
    std::fs::write(
        &file,
        with_pool("[server]\nlisten = \"127.0.0.1:1\"\nbody_limit = \"1MiB\"\nbody_memory = \"2GiB\"\n"),
    )
    .unwrap();
    let new = reload(&source, &Overrides::default(), &no_env, &old).unwrap();
    let kept = |key: &str| format!("{key} changed and needs a restart: the old value stays");
    assert_eq!(new.warnings, [kept("server.listen"), kept("server.body_memory")]);
    assert_eq!(new.config.server.body_memory, old.server.body_memory);
    assert_eq!(new.config.server.listen, old.server.listen);
    assert_eq!(new.config.server.body_limit, 1 << 20);
    let large = with_pool("[server]\nbody_limit = \"1500MiB\"\nbody_memory = \"2GiB\"\n");
    std::fs::write(&file, large).unwrap();
    let new = reload(&source, &Overrides::default(), &no_env, &old).unwrap();
    assert_eq!(new.warnings, [kept("server.body_memory"), kept("server.body_limit")]);
    assert_eq!(new.config.server.body_limit, old.server.body_limit);
    // State is kept by the admin port's number, and stays where it is with that.
    std::fs::write(&file, with_pool("[admin]\nlisten = \"127.0.0.1:7\"\n")).unwrap();
    let new = reload(&source, &Overrides::default(), &no_env, &old).unwrap();
    assert_eq!(new.warnings, [kept("admin.listen")]);
    assert_eq!(format!("{:?}", new.config), format!("{old:?}"), "nothing else is in force");
    std::fs::write(&file, "[[pool]]\n").unwrap();
    let error = reload(&source, &Overrides::default(), &no_env, &old).unwrap_err().to_string();
    assert!(error.contains("gateway.toml:1:1: "), "{error}");
}

#[test]
fn an_admin_port_that_stays_on_the_network_keeps_its_tokens_until_it_moves() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.toml");
    let source = Source::File(file.clone());
    let env = |name: &str| Some(name.to_owned());
    let old = "[admin]\nlisten = \"0.0.0.0:9\"\ntoken = \"env:ONE\"\nread_token = \"env:TWO\"\n";
    std::fs::write(&file, with_pool(old)).unwrap();
    let old = load(&source, &Overrides::default(), &env).unwrap();
    std::fs::write(&file, with_pool("[admin]\nlisten = \"127.0.0.1:9\"\n")).unwrap();
    let new = reload(&source, &Overrides::default(), &env, &old).unwrap();
    let shown = |config: &Config| format!("{:?}", config.admin);
    assert_eq!(shown(&new.config), shown(&old));
    assert!(new.config.admin.is_guarded());
    let named = |key: &str| new.warnings.iter().any(|warning| warning.starts_with(key));
    assert!(
        ["admin.listen ", "admin.token ", "admin.read_token "].into_iter().all(named),
        "{:?}",
        new.warnings
    );
    // Another token is taken at once.
    std::fs::write(&file, with_pool("[admin]\nlisten = \"0.0.0.0:9\"\ntoken = \"env:THREE\"\n")).unwrap();
    let new = reload(&source, &Overrides::default(), &env, &old).unwrap();
    assert_eq!(new.config.admin.token.as_ref().map(|token| token.reveal()), Some("THREE"));
    assert!(new.config.admin.read_token.is_none() && new.warnings.is_empty(), "{:?}", new.warnings);
}

#[test]
fn files_that_are_watched_with_the_configuration_are_those_it_was_read_from() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    for name in ["token", "key", "other"] {
        std::fs::write(path(name), name).unwrap();
    }
    let text = "[admin]\ntoken = \"file:token\"\n[[pool]]\nname = \"p\"\nfile = \"replicas.json\"\n\
        engine_api_key = \"file:key\"\n";
    std::fs::write(path("gateway.toml"), text).unwrap();
    let other = format!("file:{}", path("other").display());
    let overrides =
        Overrides { admin_read_token: Some(tokenway::config::Secret::new(other)), ..Overrides::default() };
    let mut files = load(&Source::File(path("gateway.toml")), &overrides, &no_env).unwrap().files;
    files.sort();
    assert_eq!(files, ["key", "other", "token"].map(path), "the list of replicas has a reader of its own");
}

#[tokio::test]
async fn a_file_replaced_by_rename_or_by_a_swapped_link_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    // As Kubernetes lays out a ConfigMap: gateway.toml -> ..data/gateway.toml, ..data -> first/.
    for version in ["first", "second"] {
        std::fs::create_dir(path(version)).unwrap();
        std::fs::write(path(version).join("gateway.toml"), version).unwrap();
    }
    std::os::unix::fs::symlink("first", path("..data")).unwrap();
    std::os::unix::fs::symlink("..data/gateway.toml", path("gateway.toml")).unwrap();
    let (_watcher, mut changes) = watch_files(&[path("gateway.toml")]).unwrap();
    std::os::unix::fs::symlink("second", path("..new")).unwrap();
    std::fs::rename(path("..new"), path("..data")).unwrap();
    changed(&mut changes).await;
    std::fs::write(path("edited"), "third").unwrap();
    std::fs::rename(path("edited"), path("gateway.toml")).unwrap();
    changed(&mut changes).await;
    assert_eq!(*changes.borrow(), 2);
}

async fn changed(changes: &mut tokio::sync::watch::Receiver<u64>) {
    tokio::time::timeout(Duration::from_secs(30), changes.changed()).await.unwrap().unwrap();
}

/// Endpoints of vLLM that `server.extra_paths` may open.
const OPENABLE: [&str; 13] = [
    "/cohere/v2/chat", "/inference/v1/generate", "/invocations", "/load", "/ping",
    "/v1/chat/completions/derender", "/v1/chat/completions/render", "/v1/completions/derender",
    "/v1/completions/render", "/v1/messages/render", "/v1/responses/render", "/v1/systemone", "/static",
];

#[test]
fn every_endpoint_of_vllm_is_served_refused_or_known_to_be_harmless() {
    let recorded = include_str!("fixtures/vllm/endpoints.json");
    let recorded: serde_json::Value = serde_json::from_str(recorded).unwrap();
    let own = ["/health", "/version", "/v1/models"];
    for path in recorded["endpoints"].as_object().unwrap().keys() {
        let concrete: Vec<&str> =
            path.split('/').map(|segment| if segment.starts_with('{') { "x" } else { segment }).collect();
        let dialect = Dialect::of_path(&concrete.join("/"), &[]);
        let is_served = dialect.is_some_and(|(_, dialect)| dialect != Dialect::StoredResponse)
            || own.contains(&path.as_str())
            || path.starts_with("/v1/responses/{response_id}");
        let is_control = paths::control_endpoint(path).is_some();
        let kinds = [is_served, is_control, OPENABLE.contains(&path.as_str())];
        assert_eq!(
            kinds.iter().filter(|kind| **kind).count(),
            1,
            "{path} {kinds:?}: serve it, or name it in src/config/paths.rs or here"
        );
        if !is_control {
            continue;
        }
        assert!(dialect.is_none() && paths::check_extra(path).is_err(), "{path}");
        // No pattern with a name in place of one of its segments opens it.
        for at in 1..concrete.len() {
            let mut pattern = concrete.clone();
            pattern[at] = "{name}";
            assert!(paths::check_extra(&pattern.join("/")).is_err(), "{pattern:?} opens {path}");
        }
    }
}
