//! Free ports on loopback.
//!
//! Taken below the kernel's ephemeral range (32768 and up on Linux): a port of that range may become the local end of
//! some connection between the moment it was found free and the moment a server binds it.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Result, bail};

const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// A port that nothing listens on and that this process has not handed out before.
pub fn free() -> Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Processes that run side by side begin at different places.
    let start = (std::process::id() % 200) as u16 * (COUNT / 200);
    for _ in 0..COUNT {
        let port = FIRST + (start + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT;
        if is_free(port) {
            return Ok(port);
        }
    }
    bail!("no free port on 127.0.0.1 between {FIRST} and {}", FIRST + COUNT)
}

/// The first of `count` such ports in a row.
pub fn free_row(count: u16) -> Result<u16> {
    let mut first = free()?;
    let mut last = first;
    for _ in 0..COUNT {
        if last - first + 1 >= count {
            return Ok(first);
        }
        let next = free()?;
        if next != last + 1 {
            first = next;
        }
        last = next;
    }
    bail!("no {count} free ports in a row on 127.0.0.1")
}

/// Whether `port` can be bound on loopback.
pub fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}
