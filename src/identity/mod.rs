//! Control plane: how clients prove who they are: keys of the token issuer, and API keys made at run time.

mod key_sharing;
mod key_store;
mod random;
mod revocations;
mod token_keys;

pub use self::key_sharing::Revocation;
pub use self::key_store::{KeyError, KeyStore, SharedKey};
pub use self::random::random;
pub use self::token_keys::{JwksError, refresh_keys};
