//! Usage for the bill.

answers! {
    /// `/usage`
    struct UsageAnswer {
        /// What rows are by: `tenant`, `model`, `key`, `day`.
        by: Vec<String>,
        rows: Vec<UsageRow>,
        /// From when on figures count: the beginning of the hour, or of the day where it is long over. `null` without any.
        since: Option<String>,
        total: UsageRow,
        until: String,
    }

    /// What was used; a name is left out where rows are not by it.
    struct UsageRow {
        cached_tokens: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        day: Option<String>,
        decode_seconds: f64,
        /// Of whole answers for which engines report neither prefill nor decode.
        engine_other_seconds: f64,
        /// Cached ones included.
        input_tokens: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        model: Option<String>,
        output_tokens: u64,
        prefill_seconds: f64,
        /// Refused ones included.
        requests: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        tenant: Option<String>,
    }
}
