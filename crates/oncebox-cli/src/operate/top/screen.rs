//! Shows samples: on a terminal, as plain lines, or as JSON.

use std::io::{Write, stdout};
use std::time::SystemTime;

use anyhow::Result;
use serde_json::{Value, json};

use super::sample::{Rates, StatusSample};
use crate::exit::error_text;
use crate::operate::known::state_name;
use crate::operate::status::millis;
use crate::output::CommandOutput;
use crate::store::DatabaseTarget;
use crate::table::TextTable;
use crate::times::{rfc3339, rough};

/// The alternate screen, without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Redraws from the top left. Each line clears its rest, and the last one everything below: that avoids flicker.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";
/// The size if the terminal does not report one.
const ROWS: usize = 24;
const COLUMNS: usize = 80;

/// Shows samples and errors.
#[derive(Debug)]
pub(super) struct Screen {
    kind: ScreenKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScreenKind {
    Terminal,
    Plain,
    Json,
}

impl Screen {
    pub(super) fn terminal() -> Result<Self> {
        // The alternate screen keeps the text of the shell, and shows it again at the end.
        write(ENTER)?;
        Ok(Self { kind: ScreenKind::Terminal })
    }

    pub(super) fn plain() -> Self {
        Self { kind: ScreenKind::Plain }
    }

    pub(super) fn json() -> Self {
        Self { kind: ScreenKind::Json }
    }

    pub(super) fn show(&self, sample: &StatusSample, rates: &Rates, target: &DatabaseTarget) -> Result<()> {
        match self.kind {
            ScreenKind::Json => CommandOutput { json: true }.object(&object(sample, rates)),
            ScreenKind::Plain => CommandOutput { json: false }.line(plain(sample, rates)),
            ScreenKind::Terminal => draw(&whole(sample, rates, target)),
        }
    }

    pub(super) fn show_error(&self, error: &anyhow::Error, target: &DatabaseTarget) -> Result<()> {
        let (at, error) = (rfc3339(SystemTime::now()), error_text(error));
        match self.kind {
            ScreenKind::Json => CommandOutput { json: true }.object(&json!({ "at": at, "error": error })),
            ScreenKind::Plain => CommandOutput { json: false }.line(format_args!("{at} error: {error}")),
            ScreenKind::Terminal => {
                let error = wrapped(&error, size().1);
                draw(&format!(
                    "oncebox top  {}  {at}\n\n{error}\n\nRetrying. Press Ctrl-C to quit.",
                    target.redacted_url()
                ))
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.kind == ScreenKind::Terminal {
            // An error means that the terminal was closed.
            let _ = write(LEAVE);
        }
    }
}

fn write(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Draws over the last text, cut to the size of the terminal.
fn draw(text: &str) -> Result<()> {
    let (rows, columns) = size();
    let mut drawn = String::from(HOME);
    for (n, line) in text.lines().take(rows).enumerate() {
        if n > 0 {
            drawn.push_str("\r\n");
        }
        drawn.extend(line.chars().take(columns));
        drawn.push_str(CLEAR_LINE);
    }
    drawn.push_str(CLEAR_BELOW);
    write(&drawn)
}

/// Wraps a text between words. Errors are not cut, because the cause is at their end.
fn wrapped(text: &str, columns: usize) -> String {
    let (mut lines, mut width) = (String::new(), 0);
    for word in text.split_whitespace() {
        let letters = word.chars().count();
        match width {
            0 => width = letters,
            _ if width + 1 + letters <= columns => {
                lines.push(' ');
                width += 1 + letters;
            }
            _ => {
                lines.push('\n');
                width = letters;
            }
        }
        lines.push_str(word);
    }
    lines
}

fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => (size.ws_row.into(), size.ws_col.into()),
        _ => (ROWS, COLUMNS),
    }
}

fn rate(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"))
}

fn whole(sample: &StatusSample, rates: &Rates, target: &DatabaseTarget) -> String {
    let names = ["handler", "state", "mode", "passed/s", "lag", "oldest waiting", "tasks", "dead"];
    let mut table = TextTable::new(names).right([3, 4, 5, 6, 7]);
    for (status, passed) in sample.handlers.iter().zip(&rates.passed) {
        table.row([
            status.handler.name.clone(),
            state_name(status.handler.state).to_owned(),
            status.handler.mode.name().to_owned(),
            rate(*passed),
            status.lag.to_string(),
            status.oldest_waiting.map_or_else(|| "-".to_owned(), rough),
            status.tasks.to_string(),
            status.dead.to_string(),
        ]);
    }
    format!(
        "oncebox top  {}  {}\n\naccepted/s {}   dead letters {}   processes {}\n\n{table}\n\nPress Ctrl-C to quit",
        target.redacted_url(),
        rfc3339(sample.at),
        rate(rates.accepted),
        sample.dead(),
        sample.processes,
    )
}

/// One line for the database, and one for each handler.
fn plain(sample: &StatusSample, rates: &Rates) -> String {
    let at = rfc3339(sample.at);
    let mut lines = vec![format!(
        "{at} accepted/s {} dead {} processes {}",
        rate(rates.accepted),
        sample.dead(),
        sample.processes
    )];
    for (status, passed) in sample.handlers.iter().zip(&rates.passed) {
        lines.push(format!(
            "{at} {} {} {} passed/s {} lag {} oldest {} tasks {} dead {}",
            status.handler.name,
            state_name(status.handler.state),
            status.handler.mode.name(),
            rate(*passed),
            status.lag,
            status.oldest_waiting.map_or_else(|| "-".to_owned(), rough),
            status.tasks,
            status.dead,
        ));
    }
    lines.join("\n")
}

fn object(sample: &StatusSample, rates: &Rates) -> Value {
    let handlers = sample.handlers.iter().zip(&rates.passed).map(|(status, passed)| {
        json!({
            "name": status.handler.name,
            "state": state_name(status.handler.state),
            "mode": status.handler.mode.name(),
            "passed_per_second": passed,
            "lag": status.lag,
            "oldest_waiting_ms": status.oldest_waiting.map(millis),
            "tasks": status.tasks,
            "dead": status.dead,
        })
    });
    json!({
        "at": rfc3339(sample.at),
        "accepted_per_second": rates.accepted,
        "dead": sample.dead(),
        "processes": sample.processes,
        "handlers": handlers.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_at_the_end_is_on_the_screen() {
        let text = "opening postgres://db/x: PostgreSQL cannot be reached: Connection refused";
        let wrapped = wrapped(text, 30);
        assert!(wrapped.lines().all(|line| line.chars().count() <= 30), "{wrapped}");
        assert_eq!(wrapped.replace('\n', " "), text);
    }
}
