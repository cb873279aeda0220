//! Tables for people.

use std::fmt;

/// Columns under their names, as wide as they need to be.
#[derive(Debug, Default)]
pub(crate) struct Table {
    names: Vec<&'static str>,
    /// Which columns are numbers.
    right: Vec<usize>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(names: impl Into<Vec<&'static str>>) -> Self {
        Self { names: names.into(), ..Self::default() }
    }

    /// Numbers stand to the right.
    pub(crate) fn right(mut self, columns: impl Into<Vec<usize>>) -> Self {
        self.right = columns.into();
        self
    }

    /// As many cells as there are columns.
    pub(crate) fn row(&mut self, cells: impl Into<Vec<String>>) {
        let mut cells = cells.into();
        for cell in &mut cells {
            // One line each, whatever an error says.
            *cell = cell.split_whitespace().collect::<Vec<_>>().join(" ");
        }
        // The last one has nothing behind it to push away.
        let last = cells.len().saturating_sub(1);
        for cell in &mut cells[..last] {
            *cell = shortened(cell, CELL_LETTERS);
        }
        self.rows.push(cells);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// Keys and kinds are as long as their senders like; a table is not.
const CELL_LETTERS: usize = 48;

/// The beginning of a text, and a sign that there is more.
pub(crate) fn shortened(text: &str, letters: usize) -> String {
    match text.char_indices().nth(letters) {
        Some(_) => text.chars().take(letters.saturating_sub(1)).chain(['…']).collect(),
        None => text.to_owned(),
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
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
    fn columns_are_as_wide_as_they_need_to_be() {
        let mut table = Table::new(["handler", "lag", "error"]).right([1]);
        table.row(["ledger".to_owned(), "12".to_owned(), "two\n  lines".to_owned()]);
        table.row(["größer als das".to_owned(), "3456".to_owned(), String::new()]);
        let expected = "handler          lag  error\nledger            12  two lines\ngrößer als das  3456";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn a_long_key_does_not_push_the_others_away() {
        let mut table = Table::new(["key", "died"]);
        table.row(["k".repeat(200), "now".to_owned()]);
        table.row(["ä".repeat(CELL_LETTERS), "then".to_owned()]);
        let cut = format!("{}…  now", "k".repeat(CELL_LETTERS - 1));
        let whole = format!("{}  then", "ä".repeat(CELL_LETTERS));
        assert_eq!(table.to_string().lines().skip(1).collect::<Vec<_>>(), [cut, whole]);
    }
}
