//! How far it is: a bar on a terminal, a line now and then elsewhere, nothing for programs.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::demo::history::Counts;

/// Between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// Between two looks at the numbers for the bar.
const BAR_EVERY: Duration = Duration::from_millis(100);

/// Shows how far it is.
#[derive(Debug)]
pub(super) struct Progress {
    form: Form,
    shown: Instant,
}

#[derive(Debug)]
enum Form {
    Bar(ProgressBar),
    Lines,
    Nothing,
}

impl Progress {
    pub(super) fn new(messages: u64, for_program: bool) -> Self {
        let form = match (for_program, std::io::stderr().is_terminal()) {
            (true, _) => Form::Nothing,
            (false, false) => Form::Lines,
            (false, true) => {
                let bar = ProgressBar::with_draw_target(Some(messages), ProgressDrawTarget::stderr());
                let style = ProgressStyle::with_template("[{bar:30}] {pos}/{len} acknowledged  {msg}");
                Form::Bar(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
            }
        };
        Self { form, shown: Instant::now() }
    }

    pub(super) fn show(&mut self, counts: &Counts) {
        let every = if matches!(self.form, Form::Bar(_)) { BAR_EVERY } else { LINE_EVERY };
        if self.shown.elapsed() < every {
            return;
        }
        self.shown = Instant::now();
        let text = text(counts);
        match &self.form {
            Form::Bar(bar) => {
                bar.set_message(text);
                bar.set_position(counts.acknowledged);
            }
            Form::Lines => line(&format!("{}/{} acknowledged  {text}", counts.acknowledged, counts.messages)),
            Form::Nothing => {}
        }
    }

    /// All is acknowledged, and so much is still to be handled.
    pub(super) fn work_off(&mut self, left: u64) {
        if let Form::Bar(bar) = &self.form {
            bar.set_position(bar.length().unwrap_or_default());
            bar.set_message(format!("{left} stored ones left to handle"));
        }
    }

    /// Leaves a terminal as it was.
    pub(super) fn clear(&self) {
        if let Form::Bar(bar) = &self.form {
            bar.finish_and_clear();
        }
    }
}

fn text(counts: &Counts) -> String {
    let Counts { delivered, recognised, acks_dropped, crashes, .. } = counts;
    format!(
        "{delivered} delivered  {recognised} duplicates recognised  {acks_dropped} acks dropped  {crashes} kills"
    )
}

fn line(text: &str) {
    #[allow(clippy::print_stderr, reason = "the program speaks to a person")]
    {
        eprintln!("{text}");
    }
}
