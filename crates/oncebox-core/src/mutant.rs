//! Mutants: deliberate faults in the protocol, which show whether the tests detect them.
//!
//! In a normal build [`mutant!`](crate::mutant!) is the constant `false`, and no text changes. In a build with
//! `--cfg oncebox_mutants` the variable [`MUTANT`] switches one mutant on by its name. The faulty branches are compiled in
//! both builds, so that they always compile. `cargo xtask mutants` lists them.

/// The environment variable that names the mutant to switch on.
pub const MUTANT: &str = "ONCEBOX_MUTANT";

/// Whether this build has mutants.
pub const ENABLED: bool = cfg!(oncebox_mutants);

/// Whether a mutant is switched on; a constant `false` in a normal build.
#[doc(hidden)]
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {
        $crate::mutant::ENABLED && $crate::mutant::is_on($name)
    };
}

/// Whether this process runs with that mutant. Use [`mutant!`](crate::mutant!), which normal builds remove.
pub fn is_on(name: &str) -> bool {
    // Read once: this is asked in hot paths.
    static CHOSEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    // `ENABLED` first: a normal build never reads the environment.
    ENABLED && CHOSEN.get_or_init(|| std::env::var(MUTANT).ok()).as_deref() == Some(name)
}

/// A mutant's change of a statement or a migration.
#[derive(Clone, Copy, Debug)]
pub struct Edit {
    /// The mutant's name.
    pub mutant: &'static str,
    /// The name of the statement, or of the migration's file without its extension.
    pub text: &'static str,
    /// The fragment that is replaced, at each of its places.
    pub from: &'static str,
    /// The replacement.
    pub to: &'static str,
}

impl Edit {
    /// The text with the replacement.
    ///
    /// # Panics
    ///
    /// If the text does not contain the fragment. A mutant without a change would count as undetected, or as detected for
    /// another reason.
    pub fn apply(&self, text: &str) -> String {
        let Self { mutant, text: name, from, to } = self;
        assert!(text.contains(from), "the mutant {mutant} finds nothing to replace in {name}: {from}");
        text.replace(from, to)
    }
}

/// The text with all edits of the mutant that is switched on; unchanged in a normal build.
///
/// Each call that changes a text leaks it: keep the result.
pub fn edited(edits: &[Edit], name: &str, text: &'static str) -> &'static str {
    if !ENABLED {
        return text;
    }
    let mut mine = edits.iter().filter(|edit| edit.text == name && is_on(edit.mutant)).peekable();
    if mine.peek().is_none() {
        return text;
    }
    String::leak(mine.fold(text.to_owned(), |text, edit| edit.apply(&text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDIT: Edit = Edit { mutant: "none_of_the_list", text: "sweep", from: "state = 1 and ", to: "" };

    #[test]
    fn an_edit_replaces_its_fragment_and_nothing_else() {
        assert_eq!(EDIT.apply("delete where state = 1 and old"), "delete where old");
    }

    #[test]
    #[should_panic(expected = "the mutant none_of_the_list finds nothing to replace in sweep")]
    fn an_edit_without_its_fragment_panics() {
        EDIT.apply("delete where old");
    }

    #[test]
    fn a_mutant_that_is_not_switched_on_changes_nothing() {
        assert!(!mutant!("none_of_the_list"));
        let text = "delete where state = 1 and old";
        assert_eq!(edited(&[EDIT], "sweep", text).as_ptr(), text.as_ptr());
    }

    #[test]
    fn a_normal_build_has_no_mutants() {
        assert_eq!(ENABLED, cfg!(oncebox_mutants));
        assert!(ENABLED || !is_on(&std::env::var(MUTANT).unwrap_or_default()));
    }
}
