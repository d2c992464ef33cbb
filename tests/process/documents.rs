//! README and book, read as a stranger does: the commands that they show run, what they name exists, every page has its place.

#[path = "documents/commands.rs"]
mod commands;
#[path = "documents/names.rs"]
mod names;

use std::fs;
use std::path::{Path, PathBuf};

/// A page: its path from the root of the repository, and its text.
struct Page {
    path: String,
    text: String,
}

impl Page {
    /// README, security page, the book and its decisions.
    fn all() -> Vec<Self> {
        let mut paths = vec!["README.md".to_owned(), "SECURITY.md".to_owned()];
        let mut folders = vec!["docs".to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(root().join(&folder)).unwrap().map(Result::unwrap) {
                let path = format!("{folder}/{}", entry.file_name().into_string().unwrap());
                if entry.path().is_dir() {
                    folders.push(path);
                } else if path.ends_with(".md") {
                    paths.push(path);
                }
            }
        }
        paths.sort();
        paths.iter().map(|path| Self::read(path)).collect()
    }

    fn read(path: &str) -> Self {
        let text = fs::read_to_string(root().join(path)).unwrap();
        // Its commands are flags' defaults and descriptions, not for copying.
        let text = text.split("<!-- generated from --help -->").next().unwrap_or_default().to_owned();
        Self { path: path.to_owned(), text }
    }

    /// The text between fences of a kind.
    fn blocks(&self, kind: &str) -> Vec<&str> {
        let begin = format!("```{kind}\n");
        self.text.split(begin.as_str()).skip(1).filter_map(|rest| rest.split("```").next()).collect()
    }

    /// The text outside of fences.
    fn prose(&self) -> String {
        self.text.split("```").step_by(2).collect()
    }

    /// What stands between single backticks.
    fn spans(&self) -> Vec<String> {
        let prose = self.prose();
        prose.split('`').skip(1).step_by(2).map(|span| span.replace('\n', " ")).collect()
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}
