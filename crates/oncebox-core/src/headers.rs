//! Headers: what travels beside a body.

/// An ordered list of name and value. Case is kept, look-up ignores it, a name may occur more than once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// The header in which a source puts the id that the broker or sender gave this delivery.
    pub const MESSAGE_ID: &'static str = "oncebox-message-id";
    /// The header in which a source puts its own name; message ids are unique per source only.
    pub const SOURCE: &'static str = "oncebox-source";
    /// The W3C trace context of the sender.
    pub const TRACEPARENT: &'static str = "traceparent";

    /// The most bytes that names and values of one message's headers may have together. More are rejected.
    pub const MAX_BYTES: usize = 64 * 1024;

    /// No headers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a header behind those that are there.
    pub fn append(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.push((name.into(), value.into()));
    }

    /// Removes every header of that name, then adds this one.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        let name = name.into();
        self.0.retain(|(other, _)| !other.eq_ignore_ascii_case(&name));
        self.append(name, value);
    }

    /// The first value of that name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.get_all(name).next()
    }

    /// Every value of that name, in order.
    pub fn get_all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// All headers in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The headers as stores keep them: a JSON list of pairs; `None` if there are none.
    pub fn to_json(&self) -> Option<String> {
        // Strings always have a JSON form.
        (!self.is_empty()).then(|| serde_json::to_string(&self.0).unwrap_or_default())
    }

    /// The headers that a store kept.
    pub fn from_json(json: Option<&str>) -> Self {
        json.and_then(|json| serde_json::from_str(json).ok()).map(Self).unwrap_or_default()
    }

    /// How many bytes the names and values have together.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len()).sum()
    }

    /// How many headers there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(headers: I) -> Self {
        Self(headers.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_come_back_from_a_store_as_they_were() {
        let headers: Headers = [("a", "1"), ("A", "\0\"é"), ("a", "1")].into_iter().collect();
        assert_eq!(Headers::from_json(headers.to_json().as_deref()), headers);
        assert_eq!(Headers::new().to_json(), None);
        assert_eq!(Headers::from_json(None), Headers::new());
    }

    #[test]
    fn case_is_kept_and_look_up_ignores_it() {
        let mut headers: Headers =
            [("X-Tenant", "a"), ("x-tenant", "b"), ("Other", "c")].into_iter().collect();
        assert_eq!(headers.get("X-TENANT"), Some("a"));
        assert_eq!(headers.get_all("x-tenant").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(headers.iter().next(), Some(("X-Tenant", "a")));
        headers.set("x-TENANT", "d");
        assert_eq!(headers.iter().collect::<Vec<_>>(), [("Other", "c"), ("x-TENANT", "d")]);
    }
}
