//! Mutants: places where the protocol can be broken on purpose, to see whether the tests notice.
//!
//! Nothing of this is in a normal build: there [`mutant!`](crate::mutant!) is the constant `false`, and texts stay as they
//! are. In a build with `--cfg oncebox_mutants` one mutant is switched on by its name in [`MUTANT`]. The broken branches are
//! compiled in both, so that they cannot rot. `cargo xtask mutants` has the list.

/// The environment variable that names the mutant to switch on.
pub const MUTANT: &str = "ONCEBOX_MUTANT";

/// Whether this build can be broken.
pub const ENABLED: bool = cfg!(oncebox_mutants);

/// Whether a mutant is switched on; a constant `false` in a normal build.
#[doc(hidden)]
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {
        $crate::mutant::ENABLED && $crate::mutant::is_on($name)
    };
}

/// Whether this process was started as that mutant. Use [`mutant!`](crate::mutant!), which normal builds remove.
pub fn is_on(name: &str) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    ENABLED && CHOSEN.get_or_init(|| std::env::var(MUTANT).ok()).as_deref() == Some(name)
}

/// What a mutant changes in a text: a statement or a migration.
#[derive(Clone, Copy, Debug)]
pub struct Edit {
    /// The mutant.
    pub mutant: &'static str,
    /// The text: the name of a statement, or of a migration's file without its ending.
    pub text: &'static str,
    /// What is replaced, wherever it stands.
    pub from: &'static str,
    /// What stands there instead.
    pub to: &'static str,
}

impl Edit {
    /// The text with the replacement.
    ///
    /// # Panics
    ///
    /// If there is nothing to replace: a mutant that changes nothing would be missed, or caught for another reason.
    pub fn apply(&self, text: &str) -> String {
        let Self { mutant, text: name, from, to } = self;
        assert!(text.contains(from), "the mutant {mutant} finds nothing to replace in {name}: {from}");
        text.replace(from, to)
    }
}

/// A text with all edits of the mutant that is switched on; as it is in a normal build. Keep what it returns: each call
/// that changes a text leaks it.
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
    fn an_edit_without_its_fragment_is_told() {
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
