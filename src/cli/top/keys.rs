//! What keys do to the view: pure, from a key and a state to the next state.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::model::{Snapshot, Table};
use crate::labels::labels;

labels! {
    /// One of the four tables, by its title.
    #[derive(Default)]
    pub(super) enum Tab {
        #[default]
        Routes = "Routes",
        Replicas = "Replicas",
        Requests = "Slow and failed",
        Findings = "Findings",
    }
}

impl Tab {
    pub(super) fn table(self, snapshot: &Snapshot) -> Table {
        match self {
            Self::Routes => snapshot.routes(),
            Self::Replicas => snapshot.replicas(),
            Self::Requests => snapshot.requests(),
            Self::Findings => snapshot.findings(),
        }
    }

    fn beside(self, step: usize) -> Self {
        let at = Self::ALL.iter().position(|tab| *tab == self).unwrap_or(0);
        Self::ALL.get((at + step) % Self::ALL.len()).copied().unwrap_or(self)
    }
}

/// What the operator looks at.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Looking {
    pub(super) tab: Tab,
    /// Selected row, among those that the filter leaves.
    pub(super) row: usize,
    /// Column to sort by; `None` as the gateway lists them.
    pub(super) sort: Option<usize>,
    pub(super) is_reversed: bool,
    pub(super) is_paused: bool,
    pub(super) filter: String,
    /// Whether keys go into the filter.
    pub(super) is_typing: bool,
    /// Whether the selected row is explained instead of listed.
    pub(super) is_open: bool,
    /// First line of the explanation that is shown.
    pub(super) scroll: u16,
    pub(super) is_over: bool,
}

impl Looking {
    pub(super) fn press(&mut self, key: KeyEvent) {
        if key.kind == KeyEventKind::Release {
            return;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            self.is_over = true;
        } else if self.is_typing {
            self.type_into_filter(key.code);
        } else {
            self.steer(key.code);
        }
    }

    fn type_into_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(c) if self.filter.len() < MAX_FILTER => self.filter.push(c),
            _ => {}
        }
        self.row = 0;
    }

    /// Keys of an open explanation; the others are those of the tables.
    fn reads(&mut self, key: KeyCode) -> bool {
        match key {
            KeyCode::Esc | KeyCode::Enter | KeyCode::Backspace => self.is_open = false,
            KeyCode::Down | KeyCode::Char('j') => self.scroll = self.scroll.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            _ => return false,
        }
        true
    }

    fn steer(&mut self, key: KeyCode) {
        if self.is_open && self.reads(key) {
            return;
        }
        match key {
            KeyCode::Enter => (self.is_open, self.scroll) = (true, 0),
            KeyCode::Char('q') => self.is_over = true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Tab | KeyCode::Right | KeyCode::Char('l') => self.show(self.tab.beside(1)),
            KeyCode::BackTab | KeyCode::Left | KeyCode::Char('h') => {
                self.show(self.tab.beside(Tab::ALL.len() - 1));
            }
            KeyCode::Char(c @ '1'..='4') => {
                let at = c as usize - '1' as usize;
                if let Some(tab) = Tab::ALL.get(at) {
                    self.show(*tab);
                }
            }
            // The view keeps the row within the table.
            KeyCode::Down | KeyCode::Char('j') => self.row = self.row.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.row = self.row.saturating_sub(1),
            KeyCode::Home | KeyCode::Char('g') => self.row = 0,
            KeyCode::End | KeyCode::Char('G') => self.row = usize::MAX,
            KeyCode::Char('s') => self.sort = Some(self.sort.map_or(0, |column| column + 1)),
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('/') => self.is_typing = true,
            _ => {}
        }
    }

    fn show(&mut self, tab: Tab) {
        self.tab = tab;
        self.is_open = false;
        self.row = 0;
        self.sort = None;
        self.is_reversed = false;
    }

    /// The request that is to be explained, of the gateway's `requests`.
    pub(super) fn wanted(&mut self, snapshot: &Snapshot) -> Option<String> {
        let is_request = self.is_open && self.tab == Tab::Requests;
        let table = is_request.then(|| self.table(snapshot))?;
        table.rows.get(self.row).and_then(|row| row.cells.last()).cloned()
    }

    /// The table of the tab: filtered, sorted, and the selected row within it.
    pub(super) fn table(&mut self, snapshot: &Snapshot) -> Table {
        let mut table = self.tab.table(snapshot);
        let wanted = self.filter.to_lowercase();
        table.rows.retain(|row| row.cells.iter().any(|cell| cell.to_lowercase().contains(&wanted)));
        if let Some(column) = self.sort.map(|column| column % table.columns.len()) {
            self.sort = Some(column);
            let cell = |row: &super::model::Row| row.cells.get(column).cloned().unwrap_or_default();
            table.rows.sort_by(|a, b| compare(&cell(a), &cell(b)));
        }
        if self.is_reversed {
            table.rows.reverse();
        }
        self.row = self.row.min(table.rows.len().saturating_sub(1));
        table
    }
}

/// Figures by their size, largest first; words in their order.
fn compare(a: &str, b: &str) -> std::cmp::Ordering {
    match (figure(a), figure(b)) {
        (Some(a), Some(b)) => b.total_cmp(&a),
        (Some(_), None) => std::cmp::Ordering::Less,
        (None, Some(_)) => std::cmp::Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

/// "1.20 s" and "300 ms" in one unit.
fn figure(text: &str) -> Option<f64> {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let number: f64 = number.parse().ok()?;
    match unit {
        "ms" => Some(number / 1e3),
        "" | "s" | "%" => Some(number),
        _ => None,
    }
}

const MAX_FILTER: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_both_units_sort_together() {
        let mut cells = ["20 ms", "1.20 s", "-", "300 ms"];
        cells.sort_by(|a, b| compare(a, b));
        assert_eq!(cells, ["1.20 s", "300 ms", "20 ms", "-"]);
    }
}
