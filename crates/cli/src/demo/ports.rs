//! Ports for what the demo starts.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

/// Below the range that Linux gives to outgoing connections: one of these may take a port before its server listens there, while
/// the server is down, or until a next run that keeps it.
const PORTS: Range<u16> = 12_000..20_000;

/// Takes free ports, one after the other. They are others' again once the listeners are dropped.
pub fn free() -> impl Iterator<Item = TcpListener> {
    let width = PORTS.end - PORTS.start;
    // Begins somewhere else in each process, so that two that start at once seldom meet.
    let first = u16::try_from(std::process::id().wrapping_mul(7919) % u32::from(width)).unwrap_or_default();
    let ports = (0..width).map(move |step| PORTS.start + (first + step) % width);
    ports.filter_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok())
}
