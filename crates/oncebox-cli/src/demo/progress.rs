//! The progress of the demo: a bar on a terminal, otherwise a line every few seconds, nothing with `--json`.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use oncebox_workload::history::DeliveryCounts;

use crate::demo::history::DemoCounts;

/// The time between two lines without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// The time between two updates of the bar.
const BAR_EVERY: Duration = Duration::from_millis(100);

/// Shows the progress.
#[derive(Debug)]
pub(super) struct DemoProgress {
    form: Form,
    shown: Instant,
}

#[derive(Debug)]
enum Form {
    Bar(ProgressBar),
    Lines,
    Nothing,
}

impl DemoProgress {
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

    /// Shows the counts while messages are delivered.
    pub(super) fn show(&mut self, counts: &DemoCounts) {
        if self.is_time() {
            self.print(counts, &text(counts));
        }
    }

    /// Shows the counts while the backlog is worked off.
    pub(super) fn show_backlog(&mut self, counts: &DemoCounts, backlog: u64) {
        if self.is_time() {
            let text = format!("{}  {backlog} stored messages left", text(counts));
            self.print(counts, &text);
        }
    }

    /// Whether it is time to show the counts again.
    fn is_time(&mut self) -> bool {
        let every = if matches!(self.form, Form::Bar(_)) { BAR_EVERY } else { LINE_EVERY };
        let is_time = self.shown.elapsed() >= every;
        if is_time {
            self.shown = Instant::now();
        }
        is_time
    }

    fn print(&self, counts: &DemoCounts, text: &str) {
        let (acknowledged, messages) = (counts.deliveries.acknowledged, counts.messages);
        match &self.form {
            Form::Bar(bar) => {
                bar.set_message(text.to_owned());
                bar.set_position(acknowledged);
            }
            Form::Lines => line(&format!("{acknowledged}/{messages} acked  {text}")),
            Form::Nothing => {}
        }
    }

    /// Removes the bar from the terminal.
    pub(super) fn clear(&self) {
        if let Form::Bar(bar) = &self.form {
            bar.finish_and_clear();
        }
    }
}

fn text(counts: &DemoCounts) -> String {
    let DemoCounts { recognised, crashes, .. } = counts;
    let DeliveryCounts { delivered, acks_dropped, .. } = counts.deliveries;
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
