//! Text for people: how logs are written, and colour on terminals, not where `NO_COLOR` or `TERM=dumb` is set otherwise.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::str::FromStr;

use crate::labels::labels;

labels! {
    /// How logs are written.
    #[derive(Default)]
    pub enum LogFormat {
        /// As text on a terminal, as JSON elsewhere.
        #[default]
        Auto = "auto",
        Text = "text",
        Json = "json",
    }
}

/// Not one of the three.
#[derive(Debug, thiserror::Error)]
#[error("known: auto, text, json")]
pub struct UnknownFormat;

impl FromStr for LogFormat {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        Self::named(text).ok_or(UnknownFormat)
    }
}

impl LogFormat {
    /// The style of text for an output; `None` where it gets JSON.
    pub fn text(self, is_terminal: bool) -> Option<Style> {
        let is_text = self == Self::Text || (self == Self::Auto && is_terminal);
        is_text.then(|| Style::for_terminal(is_terminal, &|name| std::env::var(name).ok()))
    }
}

/// Appends text from outside to a line of text: what would end the line or speak to the terminal is escaped.
pub fn push_escaped(line: &mut String, text: &str) {
    for c in text.chars() {
        if c.is_control() {
            let _ = write!(line, "{}", c.escape_default());
        } else {
            line.push(c);
        }
    }
}

/// Whether text is coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// Text as it is.
    #[default]
    Plain,
    /// With ANSI colours.
    Colored,
}

/// What a piece of text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// A fault.
    Error,
    /// Worth a look.
    Warning,
    /// All right.
    Good,
    /// Beside the matter.
    Faint,
    /// What the eye looks for.
    Bold,
}

impl Style {
    /// That of an output; `env` looks up environment variables.
    pub fn of(output: &impl IsTerminal, env: &dyn Fn(&str) -> Option<String>) -> Self {
        Self::for_terminal(output.is_terminal(), env)
    }

    /// That of an output which is a terminal or not.
    pub fn for_terminal(is_terminal: bool, env: &dyn Fn(&str) -> Option<String>) -> Self {
        let is_refused = env("NO_COLOR").is_some_and(|value| !value.is_empty())
            || env("TERM").is_some_and(|terminal| terminal == "dumb");
        if is_terminal && !is_refused { Self::Colored } else { Self::Plain }
    }

    /// The text, coloured where that is wanted.
    pub fn paint(self, paint: Paint, text: &str) -> String {
        let code = match (self, paint) {
            (Self::Plain, _) => return text.to_owned(),
            (_, Paint::Error) => "1;31",
            (_, Paint::Warning) => "1;33",
            (_, Paint::Good) => "32",
            (_, Paint::Faint) => "2",
            (_, Paint::Bold) => "1",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_for_terminals_unless_asked_for() {
        let styles =
            |format: &str| [true, false].map(|is| format.parse::<LogFormat>().unwrap().text(is).is_some());
        assert_eq!(["auto", "text", "json"].map(styles), [[true, false], [true, true], [false, false]]);
        assert!("xml".parse::<LogFormat>().is_err());
        let mut line = String::new();
        push_escaped(&mut line, "a\u{1b}[2Jb\n");
        assert_eq!(line, "a\\u{1b}[2Jb\\n");
    }

    #[test]
    fn colour_is_for_terminals_that_want_it() {
        let none = |_: &str| None;
        assert_eq!(Style::for_terminal(true, &none), Style::Colored);
        assert_eq!(Style::for_terminal(false, &none), Style::Plain);
        for (name, value, style) in [
            ("NO_COLOR", "1", Style::Plain),
            ("NO_COLOR", "", Style::Colored),
            ("TERM", "dumb", Style::Plain),
        ] {
            let env = |asked: &str| (asked == name).then(|| value.to_owned());
            assert_eq!(Style::for_terminal(true, &env), style, "{name}={value}");
        }
        assert_eq!(Style::Plain.paint(Paint::Error, "x"), "x");
        assert_eq!(Style::Colored.paint(Paint::Good, "x"), "\u{1b}[32mx\u{1b}[0m");
    }
}
