//! The key of the tenants' cache salts: from `routing.seed` where that was stated, else one of this gateway's own, kept over
//! restarts.

use std::path::Path;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::config::{Config, Secret};
use crate::identity::random;
use crate::request::cache_salt::SaltKey;
use crate::state_file;

/// Sets the key, once a tenant needs one: a seed needs a restart, and an own key stays.
pub(super) fn settle_salts(key: &OnceLock<SaltKey>, config: &Config) {
    if !config.tenants.iter().any(|tenant| tenant.cache_isolation) {
        return;
    }
    key.get_or_init(|| {
        if config.routing.has_own_seed() {
            return SaltKey::new(&config.routing.seed);
        }
        let file = config.state.as_ref().map(|place| place.file("cache-salt"));
        SaltKey::new(&own_secret(file.as_deref()))
    });
}

#[derive(Deserialize, Serialize)]
struct Kept {
    secret: String,
}

fn own_secret(file: Option<&Path>) -> Secret {
    let Some(file) = file else { return Secret::new(random()) };
    let kept = state_file::restore(file, "the key of cache salts cannot be read: a new one is made");
    let kept = kept.unwrap_or_else(|| {
        let kept = Kept { secret: random() };
        let loss = "the key of cache salts cannot be kept: tenants' caches begin anew with a restart";
        state_file::keep(file, &kept, loss);
        kept
    });
    Secret::new(kept.secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_own_key_is_kept_unread_by_others_and_a_broken_file_makes_a_new_one() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("below/cache-salt-9090.json");
        let first = own_secret(Some(&file));
        assert_eq!(own_secret(Some(&file)), first);
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&file, "{").unwrap();
        let second = own_secret(Some(&file));
        assert!(second != first && own_secret(Some(&file)) == second);
        assert!(own_secret(None) != own_secret(None), "without a place it lasts as long as the process");
    }
}
