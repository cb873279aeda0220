//! The name of an operator in the audit.

use std::fmt;

use crate::{Error, name};

/// The name of an operator, as the audit records it.
///
/// A type of its own, so that it cannot change places with a handler's name.
///
/// ```
/// # use oncebox_core::Operator;
/// let ann = Operator::new("ann")?;
/// assert_eq!(ann.as_str(), "ann");
/// assert!(Operator::new("").is_err());
/// # Ok::<(), oncebox_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Operator(String);

impl Operator {
    /// Takes a name of 1 to 200 bytes without control characters.
    pub fn new(operator: impl Into<String>) -> Result<Self, Error> {
        let operator = operator.into();
        let problem = if operator.is_empty() {
            "is empty"
        } else if operator.len() > name::MAX_BYTES {
            "has more than 200 bytes"
        } else if operator.chars().any(char::is_control) {
            "has control characters"
        } else {
            return Ok(Self(operator));
        };
        Err(Error::configuration(format!(
            "the operator name {operator:?} {problem}: the audit needs a readable name"
        )))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<&str> for Operator {
    type Error = Error;

    fn try_from(operator: &str) -> Result<Self, Error> {
        Self::new(operator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_the_audit_cannot_show_is_refused() {
        for name in ["ann", "o'brien", "台帳", &"n".repeat(200)] {
            assert_eq!(Operator::new(name).unwrap().to_string(), name);
        }
        for (name, problem) in
            [("", "is empty"), ("a\nb", "control characters"), (&*"n".repeat(201), "200 bytes")]
        {
            let error = Operator::new(name).unwrap_err().to_string();
            assert!(error.contains(problem) && error.contains(&format!("{name:?}")), "{error}");
        }
    }
}
