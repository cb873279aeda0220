//! Headers: the metadata beside a message's body.

/// An ordered list of header names and values.
///
/// The case of a name is kept, and look-up ignores it. A name may occur more than once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
// A list, not a map: it keeps order and repeated names.
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// The header with the delivery id that the broker or sender assigned.
    pub const MESSAGE_ID: &'static str = "oncebox-message-id";
    /// The header with the name of the source; delivery ids are unique per source only.
    pub const SOURCE: &'static str = "oncebox-source";
    /// The header with the sender's W3C trace context.
    pub const TRACEPARENT: &'static str = "traceparent";

    /// The maximum number of bytes in all names and values of one message. Larger headers are rejected.
    pub const MAX_BYTES: usize = 64 * 1024;

    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a header at the end.
    pub fn append(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.push((name.into(), value.into()));
    }

    /// Replaces all headers of that name with this one.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        let name = name.into();
        self.0.retain(|(other, _)| !other.eq_ignore_ascii_case(&name));
        self.append(name, value);
    }

    /// The first value of a header.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.get_all(name).next()
    }

    /// All values of a header, in order.
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

    /// The headers as a JSON list of pairs, for stores; `None` if there are none.
    pub fn to_json(&self) -> Option<String> {
        // Pairs, not an object: names may repeat, and their order counts.
        // Strings always have a JSON form.
        (!self.is_empty()).then(|| serde_json::to_string(&self.0).unwrap_or_default())
    }

    /// The headers from a store's JSON.
    pub fn from_json(json: Option<&str>) -> Self {
        json.and_then(|json| serde_json::from_str(json).ok()).map(Self).unwrap_or_default()
    }

    /// The number of bytes in all names and values.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len()).sum()
    }

    /// The number of headers.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no headers.
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
    fn headers_from_a_store_equal_those_that_it_stored() {
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
