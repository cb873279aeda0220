//! The fingerprint: it shows whether two deliveries with one key have the same body.

use sha2::{Digest, Sha256};

/// A 64-bit hash of a body, stored with the marker.
///
/// Equal keys with different fingerprints are a key reuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
// Signed: neither PostgreSQL nor SQLite has unsigned 64-bit integers.
pub struct Fingerprint(i64);

impl Fingerprint {
    /// The fingerprint of a body.
    pub fn of(body: &[u8]) -> Self {
        let digest = Sha256::digest(body);
        // 64 bits are enough: fingerprints are compared only between bodies of one key.
        let mut first = [0; 8];
        first.copy_from_slice(&digest[..8]);
        Self(i64::from_be_bytes(first))
    }

    /// The fingerprint as an integer, for stores.
    pub fn to_i64(self) -> i64 {
        self.0
    }

    /// The fingerprint from a store's integer.
    pub fn from_i64(value: i64) -> Self {
        Self(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fingerprints are in users' databases: a change here would report every redelivery as a key reuse.
    #[test]
    fn golden_vectors() {
        assert_eq!(Fingerprint::of(b"").to_i64().cast_unsigned(), 0xe3b0_c442_98fc_1c14);
        assert_eq!(Fingerprint::of(b"abc").to_i64().cast_unsigned(), 0xba78_16bf_8f01_cfea);
    }
}
