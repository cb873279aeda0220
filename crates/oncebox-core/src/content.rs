//! The content key: the key of a message that is identified by its whole content.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::{Error, Key};

/// Changes whenever the same value would get another key.
const VERSION: &str = "content:v1:";

/// A key made of the SHA-256 over the kind and the value as JSON with sorted members.
///
/// The typed value is hashed, not the bytes that arrived, so white space and member order do not matter.
/// Integers keep every digit: they never pass through a double.
pub fn content_key<T: Serialize>(kind: &str, value: &T) -> Result<Key, Error> {
    let json = serde_json::to_string(value).map_err(|error| no_json(kind, error))?;
    // Raw values keep the text of numbers, however large.
    let raw: &RawValue = serde_json::from_str(&json).map_err(|error| no_json(kind, error))?;
    let mut canonical = String::with_capacity(json.len());
    write_sorted(raw, &mut canonical).map_err(|error| no_json(kind, error))?;

    let mut hash = Sha256::new();
    // The length first: otherwise kind "n1" with value 2 and kind "n" with value 12 would share one key.
    hash.update((kind.len() as u64).to_le_bytes());
    hash.update(kind);
    hash.update(&canonical);
    let digest: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Key::from(format!("{VERSION}{digest}")))
}

fn no_json(kind: &str, error: serde_json::Error) -> Error {
    let message = format!(
        "no content key: the message of kind {kind:?} has no JSON form. Use string keys in maps, or set `key_fn`"
    );
    Error::key(message, error)
}

/// Copies scalars unchanged, and objects with their members in byte order.
///
/// `serde_json::Map` is not used for sorting: its order changes with a feature that any dependency of the application can
/// switch on.
fn write_sorted(raw: &RawValue, out: &mut String) -> Result<(), serde_json::Error> {
    match raw.get().as_bytes().first() {
        Some(b'{') => {
            let members: BTreeMap<String, &RawValue> = serde_json::from_str(raw.get())?;
            out.push('{');
            for (n, (name, value)) in members.into_iter().enumerate() {
                if n > 0 {
                    out.push(',');
                }
                out.push_str(&serde_json::to_string(&name)?);
                out.push(':');
                write_sorted(value, out)?;
            }
            out.push('}');
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(raw.get())?;
            out.push('[');
            for (n, value) in items.into_iter().enumerate() {
                if n > 0 {
                    out.push(',');
                }
                write_sorted(value, out)?;
            }
            out.push(']');
        }
        _ => out.push_str(raw.get()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde_json::json;

    use super::*;

    fn canonical(value: &serde_json::Value) -> String {
        let text = value.to_string();
        let mut out = String::new();
        write_sorted(serde_json::from_str(&text).unwrap(), &mut out).unwrap();
        out
    }

    #[test]
    fn members_are_sorted_at_every_depth() {
        let value = json!({"b": [{"d": 1, "c": {}}, []], "a": "x\"y"});
        assert_eq!(canonical(&value), r#"{"a":"x\"y","b":[{"c":{},"d":1},[]]}"#);
        assert_eq!(canonical(&json!({})), "{}");
    }

    /// These keys are in users' databases: a change here means that old messages run again.
    #[test]
    fn golden_vectors() {
        #[derive(Serialize)]
        struct Import {
            source: &'static str,
            batch: u64,
            note: Option<&'static str>,
        }
        let import = Import { source: "crm", batch: 18_446_744_073_709_551_615, note: None };
        let key = |kind: &str| content_key(kind, &import).unwrap().to_string();
        assert_eq!(
            key("import"),
            "content:v1:4651ea7e02bf6e7fee32fc590568fe09bca6a58175b933e975b4838766504553"
        );
        assert_eq!(
            key("import.v2"),
            "content:v1:f344f813316a0f078b83aa95e47c54e5a9f69dfad30c6ab032b82d7caae3386f"
        );
        assert_eq!(
            content_key("", &()).unwrap().to_string(),
            "content:v1:bc1f7cb2a2aae2f9398b1027daad093604e3e380c573d6901cd2e0536d1a3d84"
        );
        assert_eq!(
            content_key("n", &u128::MAX).unwrap().to_string(),
            "content:v1:ebff45a746a764bc061b188b4da6c2e428db484ec360c2997529738ea7bbc910"
        );
    }

    #[test]
    fn neighbouring_large_integers_differ() {
        let key = |n: u64| content_key("n", &json!({ "n": n })).unwrap();
        assert_ne!(key(9_007_199_254_740_992), key(9_007_199_254_740_993));
    }

    #[test]
    fn the_order_of_a_hash_map_does_not_matter() {
        let forward: HashMap<_, _> = (0..50).map(|n| (n.to_string(), n)).collect();
        let backward: HashMap<_, _> = (0..50).rev().map(|n| (n.to_string(), n)).collect();
        assert_eq!(content_key("m", &forward).unwrap(), content_key("m", &backward).unwrap());
    }

    #[test]
    fn a_value_without_json_form_is_an_error() {
        let by_tuple: HashMap<(u8, u8), u8> = [((1, 2), 3)].into();
        assert!(content_key("m", &by_tuple).unwrap_err().to_string().contains("no JSON form"));
    }
}
