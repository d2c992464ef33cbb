//! The screen: a verdict, tabs, one table, a line of keys. A pure function of what is known and looked at.

use std::sync::Arc;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState, Wrap};

use super::keys::{Looking, Tab};
use super::model::{Health, Snapshot};

/// What is known of the gateway.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Known {
    pub(super) url: String,
    /// The last answers; `None` before the first.
    pub(super) snapshot: Option<Arc<Snapshot>>,
    /// Why there are no newer ones.
    pub(super) trouble: Option<String>,
}

pub(super) fn draw(frame: &mut Frame<'_>, known: &Known, looking: &mut Looking, is_colored: bool) {
    let paint = Painter { is_colored };
    let (head, width) = (paint.verdict(known), usize::from(frame.area().width).max(2));
    // Words do not fill their lines.
    let lines: usize = head.iter().map(|line| line.width().div_ceil(width - width / 8).max(1)).sum();
    let areas = Layout::vertical([
        Constraint::Length(u16::try_from(lines.min(MAX_VERDICT_LINES)).unwrap_or(2)),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ]);
    let [verdict, tabs, body, keys] = areas.areas(frame.area());
    frame.render_widget(Paragraph::new(head).wrap(Wrap { trim: true }), verdict);
    frame.render_widget(Paragraph::new(paint.tabs(known, looking, tabs.width)), tabs);
    match &known.snapshot {
        Some(snapshot) if looking.is_open => {
            let text = Paragraph::new(explanation(snapshot, looking)).wrap(Wrap { trim: false });
            frame.render_widget(text.scroll((looking.scroll, 0)), body);
        }
        Some(snapshot) => paint.table(frame, body, snapshot, looking),
        None => {
            let shown = known.trouble.as_deref().unwrap_or("asking the gateway …");
            frame.render_widget(Paragraph::new(shown.to_owned()), body);
        }
    }
    frame.render_widget(Paragraph::new(paint.keys(looking)), keys);
}

/// What is known of the selected row.
fn explanation(snapshot: &Snapshot, looking: &mut Looking) -> String {
    match (&snapshot.explained, looking.wanted(snapshot)) {
        (Some((id, text)), Some(wanted)) if *id == wanted => text.clone(),
        (_, Some(wanted)) => format!("asking the gateway for {wanted} …"),
        (_, None) => {
            let table = looking.table(snapshot);
            let is_route = looking.tab == Tab::Routes;
            let lines = table.rows.get(looking.row).map(|row| snapshot.details(&table, row, is_route));
            lines.map_or_else(|| table.empty.to_owned(), |lines| lines.join("\n"))
        }
    }
}

struct Painter {
    is_colored: bool,
}

impl Painter {
    fn of(&self, health: Health) -> Style {
        let color = match health {
            Health::Good => Color::Green,
            Health::Doubtful => Color::Yellow,
            Health::Bad => Color::Red,
            Health::Idle => Color::DarkGray,
        };
        if self.is_colored { Style::new().fg(color) } else { Style::new() }
    }

    fn verdict(&self, known: &Known) -> Vec<Line<'static>> {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let mut first = vec![Span::styled("tokenway ", bold), Span::raw(known.url.clone())];
        let Some(snapshot) = &known.snapshot else { return vec![Line::from(first)] };
        let own = env!("CARGO_PKG_VERSION");
        if snapshot.version() != own {
            let shown =
                format!("  gateway is version {}, this is {own}: figures may be missing", snapshot.version());
            first.push(Span::styled(shown, self.of(Health::Doubtful)));
        }
        if let Some(trouble) = &known.trouble {
            let cause = trouble.lines().next().unwrap_or_default();
            first.push(Span::styled(
                format!("  OLD FIGURES: {cause}; trying again"),
                self.of(Health::Bad).add_modifier(Modifier::BOLD),
            ));
        }
        let (health, sentence) = snapshot.sentence();
        let sign = match health {
            Health::Good => "● ",
            Health::Doubtful => "▲ ",
            Health::Bad => "■ ",
            Health::Idle => "○ ",
        };
        let style = self.of(health).add_modifier(Modifier::BOLD);
        vec![Line::from(first), Line::from(vec![Span::styled(sign, style), Span::styled(sentence, style)])]
    }

    fn tabs(&self, known: &Known, looking: &Looking, width: u16) -> Line<'static> {
        let mut spans = Vec::new();
        for (at, tab) in Tab::ALL.into_iter().enumerate() {
            let rows = known.snapshot.as_ref().map_or(0, |snapshot| tab.table(snapshot).rows.len());
            let title = tab.as_str();
            let end = title.find(' ').filter(|_| width < WIDE).unwrap_or(title.len());
            let title = title.get(..end).unwrap_or(title);
            let title = format!(" {} {title} ({rows}) ", at + 1);
            let style =
                if tab == looking.tab { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
            spans.push(Span::styled(title, style));
            spans.push(Span::raw(" "));
        }
        Line::from(spans)
    }

    fn table(&self, frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot, looking: &mut Looking) {
        let table = looking.table(snapshot);
        if table.rows.is_empty() {
            let shown = if looking.filter.is_empty() { table.empty } else { "nothing matches the filter" };
            frame.render_widget(Paragraph::new(shown), area);
            return;
        }
        let sorted = looking.sort;
        let shown = fitting(&table, area.width);
        let columns = || shown.iter().filter_map(|at| Some((*at, table.columns.get(*at)?)));
        let header = columns().map(|(at, (name, _))| {
            let mark = if sorted == Some(at) { "↓" } else { "" };
            Cell::from(format!("{name}{mark}"))
        });
        let header = Row::new(header).style(Style::new().add_modifier(Modifier::BOLD));
        let last = table.columns.len().saturating_sub(1);
        let wide = |at, width| if at == last { Constraint::Fill(1) } else { Constraint::Length(width) };
        let widths = columns().map(|(at, (_, width))| wide(at, *width));
        let rows = table.rows.iter().map(|row| {
            let cells = shown.iter().filter_map(|at| row.cells.get(*at)).cloned();
            Row::new(cells).style(self.of(row.health))
        });
        let shown = Table::new(rows, Vec::from_iter(widths))
            .header(header)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        let mut state = TableState::default().with_selected(looking.row);
        frame.render_stateful_widget(shown, area, &mut state);
    }

    fn keys(&self, looking: &Looking) -> Line<'static> {
        if looking.is_typing {
            return Line::from(format!("filter: {}▏  enter keeps it, esc clears it", looking.filter));
        }
        let mut shown = String::from(match looking.is_open {
            true => "q quit  esc back  ↑↓ scroll",
            false => "q quit  tab next  ↑↓ row  ⏎ explain  / filter  s sort  r reverse  p pause",
        });
        if !looking.filter.is_empty() {
            shown = format!("{shown}   [filter: {}, esc clears it]", looking.filter);
        }
        if looking.is_paused {
            shown.push_str("   [paused]");
        }
        Line::from(Span::styled(shown, self.of(Health::Idle)))
    }
}

/// Columns of a table that fit: the last one has at least [`LAST_COLUMN`].
fn fitting(table: &super::model::Table, width: u16) -> Vec<usize> {
    let last = table.columns.len().saturating_sub(1);
    let mut shown = Vec::from_iter(0..table.columns.len());
    for spare in &table.spare {
        let wide = |at: &usize| match table.columns.get(*at) {
            Some((_, width)) if *at != last => *width + 1,
            _ => LAST_COLUMN,
        };
        if shown.iter().map(wide).sum::<u16>() <= width {
            break;
        }
        shown.retain(|at| at != spare);
    }
    shown
}

const MAX_VERDICT_LINES: usize = 5;
/// Columns below which words are left out.
const WIDE: u16 = 80;
const LAST_COLUMN: u16 = 14;
