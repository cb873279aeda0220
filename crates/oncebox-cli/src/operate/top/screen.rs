//! Where samples are shown: a terminal, a pipe for people, or a program.

use std::io::{Write, stdout};
use std::time::SystemTime;

use anyhow::Result;
use serde_json::{Value, json};

use super::sample::{Rates, Sample};
use crate::exit::in_words;
use crate::operate::known::state_name;
use crate::operate::status::millis;
use crate::output::Output;
use crate::store::Target;
use crate::table::Table;
use crate::times::{rfc3339, rough};

/// The alternate screen, without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// To the beginning; each line clears what is left of it, the last one what is below.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";
/// If the terminal does not say.
const ROWS: usize = 24;
const COLUMNS: usize = 80;

/// Where samples go.
#[derive(Debug)]
pub(super) struct Screen {
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Terminal,
    Plain,
    Json,
}

impl Screen {
    pub(super) fn terminal() -> Result<Self> {
        write(ENTER)?;
        Ok(Self { kind: Kind::Terminal })
    }

    pub(super) fn plain() -> Self {
        Self { kind: Kind::Plain }
    }

    pub(super) fn json() -> Self {
        Self { kind: Kind::Json }
    }

    pub(super) fn show(&self, sample: &Sample, rates: &Rates, target: &Target) -> Result<()> {
        match self.kind {
            Kind::Json => Output { json: true }.object(&object(sample, rates)),
            Kind::Plain => Output { json: false }.say(plain(sample, rates)),
            Kind::Terminal => draw(&whole(sample, rates, target)),
        }
    }

    pub(super) fn show_trouble(&self, trouble: &anyhow::Error, target: &Target) -> Result<()> {
        let (at, trouble) = (rfc3339(SystemTime::now()), in_words(trouble));
        match self.kind {
            Kind::Json => Output { json: true }.object(&json!({ "at": at, "trouble": trouble })),
            Kind::Plain => Output { json: false }.say(format_args!("{at} {trouble}")),
            Kind::Terminal => {
                let trouble = wrapped(&trouble, size().1);
                draw(&format!("oncebox top  {}  {at}\n\n{trouble}\n\nIt is asked again.", target.shown()))
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.kind == Kind::Terminal {
            // There is nobody left to tell.
            let _ = write(LEAVE);
        }
    }
}

fn write(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Over what was there, without a flicker, and no more than fits.
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

/// On lines of that width, broken between words: what matters most often stands at the end.
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

fn whole(sample: &Sample, rates: &Rates, target: &Target) -> String {
    let names = ["handler", "state", "passed/s", "lag", "oldest waiting", "tasks", "dead"];
    let mut table = Table::new(names).right([2, 3, 4, 5, 6]);
    for (status, passed) in sample.handlers.iter().zip(&rates.passed) {
        table.row([
            status.handler.name.clone(),
            state_name(status.handler.state).to_owned(),
            rate(*passed),
            status.lag.to_string(),
            status.oldest_waiting.map_or_else(|| "-".to_owned(), rough),
            status.tasks.to_string(),
            status.dead.to_string(),
        ]);
    }
    format!(
        "oncebox top  {}  {}\n\naccepted/s {}   dead letters {}   processes {}\n\n{table}\n\nCtrl-C ends",
        target.shown(),
        rfc3339(sample.at),
        rate(rates.accepted),
        sample.dead(),
        sample.processes,
    )
}

/// One line for the whole, one for each handler.
fn plain(sample: &Sample, rates: &Rates) -> String {
    let at = rfc3339(sample.at);
    let mut lines = vec![format!(
        "{at} accepted/s {} dead {} processes {}",
        rate(rates.accepted),
        sample.dead(),
        sample.processes
    )];
    for (status, passed) in sample.handlers.iter().zip(&rates.passed) {
        lines.push(format!(
            "{at} {} {} passed/s {} lag {} oldest {} tasks {} dead {}",
            status.handler.name,
            state_name(status.handler.state),
            rate(*passed),
            status.lag,
            status.oldest_waiting.map_or_else(|| "-".to_owned(), rough),
            status.tasks,
            status.dead,
        ));
    }
    lines.join("\n")
}

fn object(sample: &Sample, rates: &Rates) -> Value {
    let handlers = sample.handlers.iter().zip(&rates.passed).map(|(status, passed)| {
        json!({
            "name": status.handler.name,
            "state": state_name(status.handler.state),
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
