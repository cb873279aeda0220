//! Permitted addresses: unless private ones are allowed, a URL must not reach services on this machine or in its private network.

use std::error::Error;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Whether an address is reachable from the internet.
pub fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let is_special = ip.is_loopback()
        || ip.is_private()
        || ip.is_link_local()
        || ip.is_multicast()
        || ip.is_documentation()
        || a == 0
        || a >= 240
        // Carrier-grade NAT: shared by a provider's customers.
        || (a == 100 && b & 0xc0 == 64)
        || (a == 192 && b == 0 && c == 0)
        // Benchmarks.
        || (a == 198 && b & 0xfe == 18);
    !is_special
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let segments = ip.segments();
    let v4 = |high: u16, low: u16| is_public_v4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    match segments {
        // IPv4 addresses in IPv6 form: they lead to the same hosts.
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] => v4(high, low),
        [0, 0, 0, 0, 0xffff, 0, high, low] => v4(high, low),
        // NAT64 and 6to4 contain an IPv4 address, and a router may translate to it.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => v4(high, low),
        // Link-local, site-local and unique local; multicast; documentation.
        [first, ..] if first & 0xffc0 == 0xfe80 || first & 0xffc0 == 0xfec0 => false,
        [first, ..] if first & 0xfe00 == 0xfc00 || first & 0xff00 == 0xff00 => false,
        // Teredo hides its IPv4 address, and 64:ff9b:1::/48 is NAT64 within one network.
        [0x2001, 0 | 0xdb8, ..] | [0x64, 0xff9b, 1, ..] => false,
        _ => true,
    }
}

/// Whether the host of a URL is a private address as it is written. Other names are resolved first.
pub(super) fn is_private_host(host: &str) -> bool {
    // An IPv6 host has brackets.
    host.trim_matches(['[', ']']).parse().is_ok_and(|ip| !is_public(ip))
}

/// Resolves names as the system does, without private addresses unless they are allowed: a public name may resolve to one.
#[derive(Clone, Debug, Default)]
pub(super) struct AddressResolver {
    // Shared with the client, which is built before the program allows them.
    allows_private: Arc<AtomicBool>,
}

impl AddressResolver {
    pub(super) fn allow_private(&self) {
        self.allows_private.store(true, Ordering::Relaxed);
    }

    pub(super) fn allows_private(&self) -> bool {
        self.allows_private.load(Ordering::Relaxed)
    }
}

impl Resolve for AddressResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let allows_private = self.allows_private();
        Box::pin(async move {
            // At each connection, not once at the start: the owner of a name can point it to a private address later.
            let found: Vec<_> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let allowed: Vec<_> =
                found.into_iter().filter(|address| allows_private || is_public(address.ip())).collect();
            if allowed.is_empty() {
                return Err(PrivateAddress::new(name.as_str()).into());
            }
            let allowed: Addrs = Box::new(allowed.into_iter());
            Ok(allowed)
        })
    }
}

/// The error of a host that has private addresses only.
#[derive(Debug)]
pub(super) struct PrivateAddress(String);

impl PrivateAddress {
    pub(super) fn new(host: &str) -> Self {
        Self(host.to_owned())
    }
}

impl fmt::Display for PrivateAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(host) = self;
        write!(f, "{host} is on this machine or in a private network: set allow_private to allow it")
    }
}

impl Error for PrivateAddress {}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_of_this_machine_is_refused() {
        let resolver = AddressResolver::default();
        let error = resolver.resolve("localhost".parse().unwrap()).await.err().expect("it is this machine");
        assert!(error.to_string().contains("set allow_private"), "{error}");
        resolver.allow_private();
        assert!(resolver.resolve("localhost".parse().unwrap()).await.is_ok());
    }

    #[test]
    fn private_addresses_are_not_public_in_any_form() {
        for private in [
            "127.0.0.1",
            "127.9.9.9",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "0.1.2.3",
            "100.64.0.1",
            "192.0.0.8",
            "198.18.0.1",
            "198.19.255.255",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "192.0.2.1",
            "::1",
            "::",
            "fe80::1",
            "fec0::1",
            "fc00::1",
            "fdff::1",
            "ff02::1",
            "2001:db8::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::1",
            "::ffff:0:127.0.0.1",
            "2001:0:4136:e378::1",
            "2002:7f00:0001::",
            "2002:0a00:0001::1",
        ] {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
        for public in [
            "1.1.1.1",
            "8.8.8.8",
            "100.63.0.1",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "198.20.0.1",
            "2606:4700::1111",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2002:0808:0808::",
        ] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
    }
}
