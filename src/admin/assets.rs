//! The page: embedded files, served without the token, since they hold nothing of this gateway.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use http::header::CONTENT_TYPE;
use xxhash_rust::xxh3::Xxh3;

use super::AdminState;

/// Path, content type and text of every file.
const ASSETS: &[(&str, &str, &str)] = &[
    ("/favicon.svg", "image/svg+xml", include_str!("page/favicon.svg")),
    ("/page.css", CSS, include_str!("page/page.css")),
    ("/page.js", JS, include_str!("page/page.js")),
    ("/page/api.js", JS, include_str!("page/api.js")),
    ("/page/canaries.js", JS, include_str!("page/canaries.js")),
    ("/page/chart.js", JS, include_str!("page/chart.js")),
    ("/page/dom.js", JS, include_str!("page/dom.js")),
    ("/page/drift.js", JS, include_str!("page/drift.js")),
    ("/page/replicas.js", JS, include_str!("page/replicas.js")),
    ("/page/requests.js", JS, include_str!("page/requests.js")),
    ("/page/routes.js", JS, include_str!("page/routes.js")),
    ("/page/theme.js", JS, include_str!("page/theme.js")),
    ("/page/waterfall.js", JS, include_str!("page/waterfall.js")),
];
const PAGE: &str = include_str!("page/page.html");
const JS: &str = "text/javascript; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";

/// Routes of the page and its files.
pub(super) fn router() -> Router<Arc<AdminState>> {
    let page: Arc<str> = PAGE.replace("{fingerprint}", &fingerprint()).into();
    let html = get(async move || ([(CONTENT_TYPE, "text/html; charset=utf-8")], page.to_string()));
    let files = ASSETS.iter().map(|(path, content_type, text)| {
        (*path, get(async move || ([(CONTENT_TYPE, *content_type)], *text)))
    });
    files.fold(Router::new().route("/", html), |router, (path, file)| router.route(path, file))
}

/// Digest of the page's files: a page that was loaded from another build shows that it was.
pub(super) fn fingerprint() -> String {
    let mut hash = Xxh3::new();
    for (_, _, text) in ASSETS {
        hash.update(text.as_bytes());
    }
    hash.update(PAGE.as_bytes());
    format!("{:016x}", hash.digest())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_import_of_the_page_is_an_asset_and_nothing_comes_from_outside() {
        for (path, _, text) in ASSETS {
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
        assert!(!PAGE.contains("style="), "forbidden by the content security policy");
    }
}
