//! Ports to listen on.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

use anyhow::{Result, bail};

/// Below the range from which the system serves outgoing connections (Linux 32768, macOS 49152): a server that
/// is down for a moment must find its port free again, not lent to some client.
const CANDIDATES: Range<u16> = 20_000..32_000;
const ATTEMPTS: usize = 100;

/// A loopback port on which no process listens at this moment.
///
/// Another process may take it before the server does: then start the server again on another port.
pub fn free() -> Result<u16> {
    for _ in 0..ATTEMPTS {
        let port = any();
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("none of {ATTEMPTS} loopback ports in {CANDIDATES:?} is free")
}

// Random, so that test processes that start together rarely choose the same.
fn any() -> u16 {
    let random = RandomState::new().hash_one(std::process::id());
    let offset = random % u64::from(CANDIDATES.end - CANDIDATES.start);
    CANDIDATES.start + u16::try_from(offset).expect("a remainder is smaller than its u16 divisor")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_port_can_be_bound_and_lies_below_the_outgoing_range() {
        let port = free().unwrap();
        assert!(CANDIDATES.contains(&port));
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    }
}
