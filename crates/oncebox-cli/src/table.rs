//! Tables for a terminal.

use std::fmt;

/// Columns under their headings, as wide as their longest cell.
#[derive(Debug, Default)]
pub(crate) struct TextTable {
    names: Vec<&'static str>,
    /// The columns that are aligned to the right: numbers.
    right: Vec<usize>,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    pub(crate) fn new(names: impl Into<Vec<&'static str>>) -> Self {
        Self { names: names.into(), ..Self::default() }
    }

    /// Aligns these columns to the right.
    pub(crate) fn right(mut self, columns: impl Into<Vec<usize>>) -> Self {
        self.right = columns.into();
        self
    }

    /// Adds a row with one cell per column.
    pub(crate) fn row(&mut self, cells: impl Into<Vec<String>>) {
        let mut cells = cells.into();
        for cell in &mut cells {
            // An error text may have several lines; a row has one.
            *cell = cell.split_whitespace().collect::<Vec<_>>().join(" ");
        }
        // The last column has none behind it that a long cell would push away.
        let last = cells.len().saturating_sub(1);
        for cell in &mut cells[..last] {
            *cell = shortened(cell, CELL_MAX_CHARS);
        }
        self.rows.push(cells);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// Senders choose the length of keys and kinds, so cells are cut.
const CELL_MAX_CHARS: usize = 48;

/// The text, cut to this many characters and marked with `…` if it is longer.
pub(crate) fn shortened(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some(_) => text.chars().take(max_chars.saturating_sub(1)).chain(['…']).collect(),
        None => text.to_owned(),
    }
}

impl fmt::Display for TextTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            // In characters: bytes would misalign columns with non-ASCII letters.
            let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.chain(self.names.get(column).map(|name| name.len())).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.names.len()).map(width).collect();
        let line = |cells: Vec<&str>| {
            let mut line = String::new();
            for (column, (cell, &width)) in cells.into_iter().zip(&widths).enumerate() {
                if column > 0 {
                    line.push_str("  ");
                }
                let gap = " ".repeat(width.saturating_sub(cell.chars().count()));
                match self.right.contains(&column) {
                    true => line.extend([gap.as_str(), cell]),
                    false => line.extend([cell, gap.as_str()]),
                }
            }
            line.trim_end().to_owned()
        };
        write!(f, "{}", line(self.names.clone()))?;
        for row in &self.rows {
            write!(f, "\n{}", line(row.iter().map(String::as_str).collect()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let mut table = TextTable::new(["handler", "lag", "error"]).right([1]);
        table.row(["ledger".to_owned(), "12".to_owned(), "two\n  lines".to_owned()]);
        table.row(["größer als das".to_owned(), "3456".to_owned(), String::new()]);
        let expected = "handler          lag  error\nledger            12  two lines\ngrößer als das  3456";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn a_long_key_is_cut() {
        let mut table = TextTable::new(["key", "died"]);
        table.row(["k".repeat(200), "now".to_owned()]);
        table.row(["ä".repeat(CELL_MAX_CHARS), "then".to_owned()]);
        let cut = format!("{}…  now", "k".repeat(CELL_MAX_CHARS - 1));
        let whole = format!("{}  then", "ä".repeat(CELL_MAX_CHARS));
        assert_eq!(table.to_string().lines().skip(1).collect::<Vec<_>>(), [cut, whole]);
    }
}
