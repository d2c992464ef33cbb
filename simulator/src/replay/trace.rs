//! Request traces: Mooncake's JSON lines and Azure's CSV, read into one type.
//!
//! A trace has arrival times, prompt and output lengths and, Mooncake's only, the 512-token blocks of each prompt. Without
//! blocks every prompt counts as new. The first line decides the format, not the file's name.

use std::time::Duration;

use serde::Deserialize;

/// One request of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceRequest {
    /// When it came, from the start of the trace.
    pub at: Duration,
    /// Prompt tokens, at least one.
    pub prompt: u64,
    /// Output tokens, at least one.
    pub output: u64,
    /// Ids of the prompt's blocks of [`BLOCK_TOKENS`], the last one possibly partial; equal ids mean equal prompts
    /// up to and including that block. Empty where the trace has none.
    pub blocks: Vec<u64>,
}

/// A trace in the order of arrival.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// Its requests, at least one.
    pub requests: Vec<TraceRequest>,
    /// From the first arrival to one mean gap after the last.
    pub duration: Duration,
    /// The tick of its clock, where most requests share a time (Mooncake's: three seconds), else zero.
    pub grain: Duration,
}

/// A trace or recording that cannot be read.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum TraceError {
    /// A line is not a request.
    #[error("line {line}: {reason}")]
    Line {
        /// Counted from one.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// There is not one request in it.
    #[error("no requests: expected JSON lines or CSV with TIMESTAMP,ContextTokens,GeneratedTokens")]
    Empty,
    /// A recording is too short to fit an engine to.
    #[error("{found} recorded requests, but at least {wanted} are needed")]
    TooFew {
        /// Requests in the recording.
        found: usize,
        /// Requests that a fit needs.
        wanted: usize,
    },
}

impl Trace {
    /// Reads the text of a trace.
    ///
    /// # Errors
    /// The first line that is not a request, or a text without any.
    pub fn read(text: &str) -> Result<Self, TraceError> {
        // As spreadsheets and PowerShell write it.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).peekable();
        let is_json = lines.peek().is_some_and(|(_, line)| line.trim_start().starts_with('{'));
        let mut requests = Vec::new();
        let failed = |at: usize| move |reason| TraceError::Line { line: at + 1, reason };
        let is_header = |line: &str| !is_json && !line.trim_start().starts_with(|c: char| c.is_ascii_digit());
        let columns = match lines.next_if(|(_, line)| is_header(line)) {
            Some((at, header)) => columns(header).map_err(failed(at))?,
            None => [0, 1, 2],
        };
        for (at, line) in lines {
            let read = if is_json { mooncake(line) } else { azure(line, columns) };
            requests.push(read.map_err(failed(at))?);
        }
        Self::in_order(requests)
    }

    fn in_order(mut requests: Vec<TraceRequest>) -> Result<Self, TraceError> {
        requests.sort_by_key(|request| request.at);
        let (Some(first), Some(last)) = (requests.first(), requests.last()) else {
            return Err(TraceError::Empty);
        };
        let (first, last) = (first.at, last.at);
        let gap = (last - first) / u32::try_from(requests.len()).unwrap_or(u32::MAX);
        for request in &mut requests {
            request.at -= first;
        }
        let grain = grain(&requests);
        Ok(Self { requests, duration: (last - first + gap.max(grain)).max(Duration::from_millis(1)), grain })
    }
}

/// The usual gap between two different times, where most requests share theirs with another.
fn grain(requests: &[TraceRequest]) -> Duration {
    let mut gaps: Vec<Duration> = requests.windows(2).map(|pair| pair[1].at - pair[0].at).collect();
    gaps.retain(|gap| !gap.is_zero());
    if 2 * (gaps.len() + 1) > requests.len() {
        return Duration::ZERO;
    }
    gaps.sort_unstable();
    // Not the median: clocks that jitter by a millisecond around their ticks have many tiny gaps.
    gaps.get(gaps.len() * 3 / 4).copied().unwrap_or_default()
}

#[derive(Deserialize)]
struct MooncakeLine {
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

fn mooncake(line: &str) -> Result<TraceRequest, String> {
    let line: MooncakeLine = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let at = Duration::try_from_secs_f64(line.timestamp / 1_000.0);
    let at = at.map_err(|_| "timestamp is no number of milliseconds".to_owned())?;
    request(at, line.input_length, line.output_length, line.hash_ids)
}

/// The places of [`COLUMNS`] in a header, among others.
fn columns(header: &str) -> Result<[usize; 3], String> {
    let place = |name: &str| {
        let mut names = header.split(',').map(|name| name.trim().trim_matches('"'));
        names.position(|other| other.eq_ignore_ascii_case(name)).ok_or_else(|| format!("no column {name}"))
    };
    let [at, prompt, output] = COLUMNS;
    Ok([place(at)?, place(prompt)?, place(output)?])
}

fn azure(line: &str, columns: [usize; 3]) -> Result<TraceRequest, String> {
    let fields: Vec<&str> = line.split(',').map(|field| field.trim().trim_matches('"')).collect();
    let field = |which: usize| {
        let text = fields.get(columns[which]).copied();
        text.ok_or_else(|| format!("{} is missing", COLUMNS[which]))
    };
    let at = field(0)?;
    let at = since_epoch(at).ok_or_else(|| format!("\"{at}\" is no date and time"))?;
    let tokens = |which: usize| {
        let text = field(which)?;
        text.parse().map_err(|_| format!("{}: \"{text}\" is no number", COLUMNS[which]))
    };
    request(at, tokens(1)?, tokens(2)?, Vec::new())
}

fn request(at: Duration, prompt: u64, output: u64, blocks: Vec<u64>) -> Result<TraceRequest, String> {
    if prompt > MAX_TOKENS || output > MAX_TOKENS {
        return Err(format!("more than {MAX_TOKENS} tokens"));
    }
    Ok(TraceRequest { at, prompt: prompt.max(1), output: output.max(1), blocks })
}

/// `2023-11-16 18:15:46.6805900`, whatever follows the fraction ignored: only differences matter.
fn since_epoch(text: &str) -> Option<Duration> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<u64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    if !(1..=12).contains(&month) || year < 1970 {
        return None;
    }
    // Days of the Gregorian calendar, the year taken to begin in March so that the leap day is its last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day;
    let digits: String = text.get(19..)?.chars().skip(1).take_while(char::is_ascii_digit).collect();
    let fraction = if digits.is_empty() { 0.0 } else { format!("0.{digits}").parse().ok()? };
    let seconds = days * 86_400 + hour * 3_600 + minute * 60 + second;
    Some(Duration::from_secs(seconds) + Duration::from_secs_f64(fraction))
}

/// What is read of a CSV.
const COLUMNS: [&str; 3] = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"];
/// Tokens in a block of a trace.
pub const BLOCK_TOKENS: u64 = 512;
/// No model has such a context; keeps a wrong line from filling the memory.
const MAX_TOKENS: u64 = 100_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_decides_the_format() {
        let mooncake = concat!(
            "{\"timestamp\": 3000, \"input_length\": 700, \"output_length\": 5, \"hash_ids\": [1, 2]}\n",
            "{\"timestamp\": 1000, \"input_length\": 0, \"output_length\": 0, \"hash_ids\": []}\n",
        );
        let trace = Trace::read(mooncake).unwrap();
        let expected = TraceRequest { at: Duration::ZERO, prompt: 1, output: 1, blocks: vec![] };
        assert_eq!(trace.requests[0], expected, "in the order of arrival");
        assert_eq!(trace.requests[1].at, Duration::from_secs(2));
        assert_eq!((trace.requests[1].blocks.len(), trace.duration), (2, Duration::from_secs(3)));
        assert_eq!(trace.grain, Duration::ZERO);
        assert_eq!(Trace::read(&format!("\u{feff}{mooncake}")), Ok(trace), "with a byte order mark");

        let azure = concat!(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n",
            "2023-12-31 23:59:59.5000000,374,44\n",
            "2024-01-01 00:00:01+00:00,396,109\n",
        );
        let trace = Trace::read(azure).unwrap();
        assert_eq!(trace.requests[1].at, Duration::from_millis(1500));
        assert_eq!((trace.requests[1].prompt, trace.requests[1].output), (396, 109));
        let rows = azure.split_once('\n').unwrap().1;
        assert_eq!(Trace::read(rows), Ok(trace.clone()), "without a header");
        let swapped = "Model,GeneratedTokens,timestamp,ContextTokens\na,44,2023-12-31 23:59:59.5,374\n\
                       b,109,2024-01-01 00:00:01,396\n";
        assert_eq!(Trace::read(swapped), Ok(trace.clone()), "by the header's names");
        let quoted = "\"2023-12-31T23:59:59.5Z\",374,44\n\"2024-01-01T00:00:01Z\",\"396\",109\n";
        let header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
        assert_eq!(Trace::read(&format!("{header}{quoted}")), Ok(trace), "as jq's @csv writes it");
    }

    #[test]
    fn a_wrong_line_is_named() {
        let cases = [
            ("", "no requests"),
            ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests"),
            ("{\"timestamp\": 1}\n", "line 1: missing field"),
            ("TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,5\n", "line 1: no column GeneratedTokens"),
            ("2023-11-16 18:15:46,5\n", "line 1: GeneratedTokens is missing"),
            ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,5,5\n", "line 2: \"yesterday\" is no date"),
            (
                "2023-11-16 18:15:46,5,5\n2023-11-16 18:15:46,x,5\n",
                "line 2: ContextTokens: \"x\" is no number",
            ),
            (
                "{\"timestamp\": 1, \"input_length\": 999999999999, \"output_length\": 1}\n",
                "line 1: more than",
            ),
            ("{\"timestamp\": -1, \"input_length\": 9, \"output_length\": 1}\n", "line 1: timestamp"),
        ];
        for (text, said) in cases {
            let error = Trace::read(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_coarse_clock_is_noticed() {
        let times = [0, 0, 0, 2999, 3000, 3000, 3000, 3000, 6000, 6000, 6000, 9000, 9000];
        let line = |ms| format!("{{\"timestamp\": {ms}, \"input_length\": 1, \"output_length\": 1}}\n");
        let trace = Trace::read(&times.map(line).concat()).unwrap();
        assert_eq!(trace.grain, Duration::from_secs(3));
        assert_eq!(trace.duration, Duration::from_secs(12));
    }

    #[test]
    fn leap_days_count() {
        let span = |from, to| since_epoch(to).unwrap() - since_epoch(from).unwrap();
        let day = Duration::from_secs(86_400);
        assert_eq!(span("2024-02-28 10:00:00", "2024-03-01 10:00:00"), 2 * day);
        assert_eq!(span("2023-02-28 10:00:00", "2023-03-01 10:00:00"), day);
    }
}
