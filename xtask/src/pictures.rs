//! `cargo xtask pictures`: draws the program's output as SVG files in `docs/pictures`.
//!
//! A picture shows real output of the program: only the command is typed by hand.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::workspace::Workspace;

/// The number of columns that fit into the width of a README.
const COLUMNS: usize = 98;
/// In hundredths of a pixel.
// The advance of Menlo and DejaVu Sans Mono, 0.602 em, at 14 pixels.
const CHARACTER_WIDTH: usize = 843;
const LINE_HEIGHT: usize = 20;
const PADDING: usize = 20;
const TITLE_BAR: usize = 34;

/// The number of messages that arrive together for `top`, and the time between two such groups: `oncebox accept` stores
/// what it has read when its input pauses.
const GROUP: u64 = 30;
const GROUP_EVERY: Duration = Duration::from_millis(500);
/// Handlers as different as those of a real system: a fast one, a slow one, and one that fails for some messages.
const CONFIGURATION: &str = r#"
[sources.shop]
key_pointer = "/id"
kind = "order.paid"

[handlers.ledger]
kinds = ["order.paid"]
command = ["true"]

[handlers.receipts]
kinds = ["order.paid"]
command = ["sleep", "0.2"]
concurrency = 8

[handlers.shipping]
kinds = ["order.paid"]
command = ["sh", "-c", "read order; case $order in *7}) exit 1;; *99}) exit 65;; esac"]
"#;

/// Builds the program, runs it, and draws its output.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut build = workspace.cargo();
    build.args(["build", "--release", "--package", "oncebox-cli"]);
    ensure!(build.status().context("running cargo")?.success(), "the program could not be built");
    let program = PictureProgram::new(&workspace.target().join("release"))?;
    let pictures = workspace.root().join("docs/pictures");
    // With a fixed seed, so that another run draws the same faults.
    let demo = "oncebox demo --seed 42 --keep kept";
    draw(&pictures.join("demo.svg"), demo, &program.output(demo)?, &["lost ", "double ", "Exact: "])?;
    let top = "oncebox top";
    draw(&pictures.join("top.svg"), top, &program.top()?, &[])
}

/// The program, in a folder of its own.
struct PictureProgram {
    path: PathBuf,
    folder: tempfile::TempDir,
}

impl PictureProgram {
    fn new(path: &Path) -> Result<Self> {
        let folder = tempfile::tempdir().context("creating a temporary folder")?;
        // Absolute, because the commands run in another folder.
        let path = path.canonicalize().context("finding the program")?;
        Ok(Self { path, folder })
    }

    /// A command in the folder, which finds the program by its name.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(words[0]);
        let path = format!("{}:{}", self.path.display(), std::env::var("PATH").unwrap_or_default());
        command.args(&words[1..]).current_dir(self.folder.path()).env("PATH", path).stdin(Stdio::null());
        // Settings of the caller's shell would change the picture.
        for name in ["ONCEBOX_STORE", "ONCEBOX_CONFIG", "ONCEBOX_OPERATOR", "ONCEBOX_LOG"] {
            command.env_remove(name);
        }
        command
    }

    /// The standard output of a command that succeeds.
    fn output(&self, line: &str) -> Result<String> {
        let words: Vec<&str> = line.split(' ').collect();
        self.capture(self.command(&words), line)
    }

    fn capture(&self, mut command: Command, name: &str) -> Result<String> {
        let output = command.stderr(Stdio::inherit()).output();
        let output = output.with_context(|| format!("running {name}"))?;
        ensure!(output.status.success(), "{name} ended with {}", output.status);
        String::from_utf8(output.stdout).with_context(|| format!("{name} printed something that is not text"))
    }

    /// The last screen of `top`, with messages that arrive and handlers that run.
    fn top(&self) -> Result<String> {
        fs::write(self.folder.path().join("oncebox.toml"), CONFIGURATION)?;
        self.output("oncebox migrate up")?;
        let mut accept = self.command(&["oncebox", "accept", "--source", "shop"]);
        let mut accept = Stopped(accept.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?);
        let input = accept.0.stdin.take().context("the standard input of oncebox accept")?;
        // Its error is expected: the pipe breaks when `accept` is killed.
        thread::spawn(move || send(input));
        let mut work = self.command(&["oncebox", "work"]);
        let _work = Stopped(work.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
        thread::sleep(Duration::from_secs(12));
        // A terminal of 80 columns and 24 rows, which `top` assumes where the size is unknown.
        // `top` redraws only on a terminal, which `script` provides.
        let script = self.command(&["script", "-qec", "oncebox top --every 2s --count 3", "/dev/null"]);
        Ok(last_screen(&self.capture(script, "script (of the package bsdutils)")?))
    }
}

/// A process that is killed when it is dropped.
struct Stopped(Child);

impl Drop for Stopped {
    fn drop(&mut self) {
        // An error means that the process has ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends messages until the reader ends.
fn send(mut input: impl Write) -> io::Result<()> {
    for number in 1_u64.. {
        writeln!(input, "{{\"id\":\"o-{number}\",\"cents\":{number}}}")?;
        if number.is_multiple_of(GROUP) {
            input.flush()?;
            thread::sleep(GROUP_EVERY);
        }
    }
    Ok(())
}

/// The text that is on the screen before a program restores the terminal.
fn last_screen(output: &str) -> String {
    let screen = output.rsplit("\x1b[H").next().unwrap_or_default();
    let screen = screen.split("\x1b[J").next().unwrap_or_default();
    screen.replace("\x1b[K", "").replace('\r', "")
}

/// Writes a picture of a terminal with a command and its output. Lines that begin with an emphasised text are green.
fn draw(file: &Path, command: &str, output: &str, emphasised: &[&str]) -> Result<()> {
    let mut lines = vec![format!(
        r#"<tspan class="prompt">$</tspan> <tspan class="command">{}</tspan>"#,
        escaped(command)
    )];
    for line in output.trim_end().lines() {
        let class = if emphasised.iter().any(|text| line.starts_with(text)) { " class=\"good\"" } else { "" };
        lines.extend(
            wrapped(line.trim_end()).iter().map(|part| format!("<tspan{class}>{}</tspan>", escaped(part))),
        );
    }
    fs::write(file, svg(command, &lines)).with_context(|| format!("writing {}", file.display()))?;
    Ok(())
}

/// A line as several that fit, broken between words.
fn wrapped(line: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for word in line.split_inclusive(' ') {
        let last = parts.last().map_or(0, |part| part.chars().count());
        if last > 0 && last + word.trim_end().chars().count() > COLUMNS {
            parts.push(String::new());
        }
        if let Some(part) = parts.last_mut() {
            part.push_str(word);
        }
    }
    parts
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A dark window, readable on light and dark pages.
fn svg(title: &str, lines: &[String]) -> String {
    let width = PADDING * 2 + (COLUMNS * CHARACTER_WIDTH).div_ceil(100);
    let height = TITLE_BAR + PADDING + lines.len() * LINE_HEIGHT + PADDING / 2;
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        let y = TITLE_BAR + PADDING + number * LINE_HEIGHT + LINE_HEIGHT / 4;
        text.push_str(&format!("  <text x=\"{PADDING}\" y=\"{y}\" xml:space=\"preserve\">{line}</text>\n"));
    }
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">
  <title>{title}</title>
  <style>
    text {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 14px;
      fill: #e6edf3; }}
    .title {{ fill: #9198a1; font-size: 13px; }}
    .prompt {{ fill: #56d364; }}
    .command {{ font-weight: 700; }}
    .good {{ fill: #7ee787; }}
  </style>
  <rect x="0.5" y="0.5" width="{inner_width}" height="{inner_height}" rx="10" fill="#0d1117" stroke="#3d444d"/>
  <path d="M1 {TITLE_BAR} H{inner_width}" stroke="#3d444d"/>
  <circle cx="20" cy="17" r="5.5" fill="#3d444d"/>
  <circle cx="38" cy="17" r="5.5" fill="#3d444d"/>
  <circle cx="56" cy="17" r="5.5" fill="#3d444d"/>
  <text class="title" x="{middle}" y="22" text-anchor="middle">{title}</text>
{text}</svg>
"##,
        title = escaped(title),
        inner_width = width - 1,
        inner_height = height - 1,
        middle = width / 2,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_screen_is_taken() {
        let output = "\x1b[?1049h\x1b[?25l\x1b[Hfirst\x1b[K\x1b[J\x1b[Htop\x1b[K\r\nlag 3\x1b[K\x1b[J\x1b[?25h\x1b[?1049l";
        assert_eq!(last_screen(output), "top\nlag 3");
    }

    #[test]
    fn a_long_line_is_broken_between_words() {
        let words = "kills ".repeat(40);
        let parts = wrapped(&words);
        assert!(parts.iter().all(|part| part.trim_end().chars().count() <= COLUMNS));
        assert_eq!(parts.concat(), words);
        assert_eq!(wrapped(""), [""]);
    }

    #[test]
    fn markup_in_the_output_is_text() {
        assert_eq!(escaped("a < b && c > d"), "a &lt; b &amp;&amp; c &gt; d");
    }
}
