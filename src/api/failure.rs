//! What the port answers where it cannot: [`Failure`].

answers! {
    /// Body of every status that is no success.
    struct Failure {
        error: FailureError,
    }

    struct FailureError {
        /// For programs: `unknown_path`, `invalid_query`, …
        code: String,
        message: String,
    }
}
