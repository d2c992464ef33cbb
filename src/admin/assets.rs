//! The page: embedded files, served without the token, since they hold nothing of this gateway. They lie in the binary as `build.rs`
//! compressed them and are unpacked at start.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use xxhash_rust::xxh3::Xxh3;

use super::AdminState;
use crate::whole_file::unpacked;

macro_rules! packed {
    ($name:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".gz"))
    };
}

/// Path, content type and compressed text of every file.
const ASSETS: &[(&str, &str, &[u8])] = &[
    ("/favicon.svg", "image/svg+xml", packed!("favicon.svg")),
    ("/page.css", CSS, packed!("page.css")),
    ("/page.js", JS, packed!("page.js")),
    ("/page/api.js", JS, packed!("api.js")),
    ("/page/canaries.js", JS, packed!("canaries.js")),
    ("/page/chart.js", JS, packed!("chart.js")),
    ("/page/dom.js", JS, packed!("dom.js")),
    ("/page/drift.js", JS, packed!("drift.js")),
    ("/page/replicas.js", JS, packed!("replicas.js")),
    ("/page/requests.js", JS, packed!("requests.js")),
    ("/page/routes.js", JS, packed!("routes.js")),
    ("/page/theme.js", JS, packed!("theme.js")),
    ("/page/waterfall.js", JS, packed!("waterfall.js")),
];
const PAGE: &[u8] = packed!("page.html");
const JS: &str = "text/javascript; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";

/// Routes of the page and its files.
pub(super) fn router() -> Router<Arc<AdminState>> {
    let page: Arc<str> = unpacked(PAGE).replace("{fingerprint}", &fingerprint()).into();
    let html = get(async move || ([(CONTENT_TYPE, "text/html; charset=utf-8")], page.to_string()));
    let files = ASSETS.iter().map(|(path, content_type, packed)| {
        let body = Bytes::from(unpacked(packed));
        (*path, get(async move || ([(CONTENT_TYPE, *content_type)], body.clone())))
    });
    files.fold(Router::new().route("/", html), |router, (path, file)| router.route(path, file))
}

/// Digest of the page's files: a page that was loaded from another build shows that it was.
pub(super) fn fingerprint() -> String {
    let mut hash = Xxh3::new();
    for (_, _, packed) in ASSETS {
        hash.update(packed);
    }
    hash.update(PAGE);
    format!("{:016x}", hash.digest())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_import_of_the_page_is_an_asset_and_nothing_comes_from_outside() {
        for (path, _, packed) in ASSETS {
            let text = unpacked(packed);
            for import in text.split(" from \"").skip(1).filter_map(|rest| rest.split('"').next()) {
                let name = import.trim_start_matches("./").trim_start_matches("page/");
                assert!(
                    ASSETS.iter().any(|(known, ..)| known.ends_with(&format!("/{name}"))),
                    "{path}: {import}"
                );
            }
            let outside =
                text.split("http").skip(1).find(|rest| rest.starts_with("://") || rest.starts_with("s://"));
            assert!(
                outside.is_none_or(|rest| rest.starts_with("://www.w3.org/2000/svg")),
                "{path}: {outside:?}"
            );
            assert!(!text.contains("innerHTML"), "{path}: text is set as text");
        }
        assert!(!unpacked(PAGE).contains("style="), "forbidden by the content security policy");
    }
}
