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
                let style = ProgressStyle::with_template("[{bar:20}] {pos}/{len} acked  {wide_msg}");
                Form::Bar(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
            }
        };
        Self { form, shown: Instant::now() }
    }

    /// So much was acknowledged by now.
    pub(super) fn show(&mut self, counts: &Counts) {
        if self.is_time() {
            self.tell(counts.acknowledged, counts.messages, &text(counts));
        }
    }

    /// All is acknowledged, and so much is still to be handled.
    pub(super) fn work_off(&mut self, counts: &Counts, left: u64) {
        if self.is_time() {
            let text = format!("{}  {left} stored ones left to handle", text(counts));
            self.tell(counts.acknowledged, counts.messages, &text);
        }
    }

    /// Whether to show something again.
    fn is_time(&mut self) -> bool {
        let every = if matches!(self.form, Form::Bar(_)) { BAR_EVERY } else { LINE_EVERY };
        let is_time = self.shown.elapsed() >= every;
        if is_time {
            self.shown = Instant::now();
        }
        is_time
    }

    fn tell(&self, acknowledged: u64, messages: u64, text: &str) {
        match &self.form {
            Form::Bar(bar) => {
                bar.set_message(text.to_owned());
                bar.set_position(acknowledged);
            }
            Form::Lines => line(&format!("{acknowledged}/{messages} acked  {text}")),
            Form::Nothing => {}
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
        "{crashes} kills  {delivered} delivered  {recognised} duplicates recognised  {acks_dropped} acks dropped"
    )
}

fn line(text: &str) {
    #[allow(clippy::print_stderr, reason = "the program speaks to a person")]
    {
        eprintln!("{text}");
    }
}
