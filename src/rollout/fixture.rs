//! A canary section for the tests of this room.

use crate::config::check::check_str;
use crate::config::{Canary, Config};

/// Two steps, of 10 % for 1 m and of 50 % for 2 m; `more` is further lines of the section.
pub(super) fn canary(more: &str) -> Canary {
    config(more).routes[0].canary.clone().unwrap()
}

/// The canary `b` of a route with one other pool, `a`.
pub(super) fn config(more: &str) -> Config {
    let text = format!(
        "[[pool]]\nname = \"a\"\nreplicas = [\"http://127.0.0.1:1\"]\n[[pool]]\nname = \"b\"\n\
         replicas = [\"http://127.0.0.1:2\"]\n[[route]]\nmodel = \"m\"\npools = [\"a\"]\n[route.canary]\npool = \"b\"\n\
         steps = [{{ weight = 10, soak = \"1m\" }}, {{ weight = 50, soak = \"2m\" }}]\n{more}"
    );
    check_str("f", &text, &|_| None).unwrap()
}
