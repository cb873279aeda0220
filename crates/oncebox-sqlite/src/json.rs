//! Lists as statements take them: JSON arrays.

/// Numbers or texts.
pub(crate) fn to_json<T>(list: impl IntoIterator<Item = T>) -> Result<String, sqlx::Error>
where
    serde_json::Value: From<T>,
{
    let list: Vec<serde_json::Value> = list.into_iter().map(serde_json::Value::from).collect();
    serde_json::to_string(&list).map_err(|error| sqlx::Error::Encode(error.into()))
}

/// Bytes have no form in JSON.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|digit| char::from(DIGITS[usize::from(digit)]))
        .collect()
}
