//! The quick start of the README.

use anyhow::{Context, Result};

const HEADING: &str = "quick start";

/// The code that a reader copies.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct QuickStart {
    /// The lines for `Cargo.toml`.
    pub(crate) dependencies: String,
    /// The program.
    pub(crate) program: String,
}

impl QuickStart {
    /// Takes the first `toml` block below the heading, and the first `rust` block below that.
    pub(crate) fn read(readme: &str) -> Result<QuickStart> {
        let mut lines = readme.lines();
        lines
            .find(|line| line.starts_with('#') && line.to_lowercase().contains(HEADING))
            .context("README.md has no heading with the words \"Quick start\"")?;
        let dependencies = block(&mut lines, "toml")?;
        let program = block(&mut lines, "rust")?;
        Ok(QuickStart { dependencies, program })
    }
}

// The next fenced block in `language`, which may be followed by attributes, as in ```rust,no_run.
fn block<'a>(lines: &mut impl Iterator<Item = &'a str>, language: &str) -> Result<String> {
    let opens = |line: &str| {
        let info = line.strip_prefix("```")?;
        (info.split([',', ' ']).next()? == language).then_some(())
    };
    lines.find(|line| opens(line).is_some()).with_context(|| missing(language))?;
    let mut text = String::new();
    for line in lines {
        if line.starts_with("```") {
            return Ok(text);
        }
        text.push_str(line);
        text.push('\n');
    }
    Err(anyhow::anyhow!("a ```{language} block of README.md does not end"))
}

fn missing(language: &str) -> String {
    format!("README.md has no ```{language} block where the quick start needs one")
}

#[cfg(test)]
mod tests {
    use super::*;

    const README: &str = r#"# Oncebox

```rust
fn before() {}
```

## Quick start

Words.

```toml
[dependencies]
oncebox = "0.1"
```

```sh
cargo run
```

```rust,no_run
fn main() {
    println!("once");
}
```

```rust
fn after() {}
```
"#;

    #[test]
    fn the_first_blocks_below_the_heading_are_taken() {
        let quick_start = QuickStart::read(README).unwrap();
        assert_eq!(quick_start.dependencies, "[dependencies]\noncebox = \"0.1\"\n");
        assert_eq!(quick_start.program, "fn main() {\n    println!(\"once\");\n}\n");
    }

    #[test]
    fn what_is_missing_is_named() {
        let cases = [
            ("# Oncebox\n", "heading"),
            ("## Quick start\n", "```toml"),
            ("## Quick Start\n```toml\n```\n", "```rust"),
            ("## Quick start\n```toml\n```\n```rust\nfn main() {}\n", "does not end"),
            // Only below the heading counts, and a longer language name is another one.
            ("```toml\n```\n## Quick start\n```tomlish\n```\n", "```toml"),
        ];
        for (readme, expected) in cases {
            let error = QuickStart::read(readme).unwrap_err().to_string();
            assert!(error.contains(expected), "{readme:?}: {error}");
        }
    }
}
