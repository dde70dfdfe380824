//! Addresses of ZeroMQ sockets.

use std::fmt;
use std::str::FromStr;

/// `tcp://host:port` or `ipc://path`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    /// A host name or IP address, and a port.
    Tcp {
        /// Without the brackets of an IPv6 address. `*` or `0.0.0.0` where all interfaces are bound.
        host: String,
        /// Never 0.
        port: u16,
    },
    /// A Unix socket's path.
    Ipc(String),
}

/// The text is no endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not tcp://host:port or ipc://path")]
pub struct EndpointError;

impl Endpoint {
    /// The endpoint of a data-parallel rank: engines add the rank to the port. `None` if there is no such port.
    pub fn of_rank(&self, rank: u32) -> Option<Endpoint> {
        match self {
            _ if rank == 0 => Some(self.clone()),
            Endpoint::Tcp { host, port } => {
                let port = u32::from(*port).checked_add(rank)?;
                Some(Endpoint::Tcp { host: host.clone(), port: u16::try_from(port).ok()? })
            }
            Endpoint::Ipc(_) => None,
        }
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Endpoint, EndpointError> {
        if let Some(path) = text.strip_prefix("ipc://") {
            return if path.is_empty() { Err(EndpointError) } else { Ok(Endpoint::Ipc(path.to_owned())) };
        }
        let (host, port) =
            text.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':')).ok_or(EndpointError)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let fits = match bare {
            Some(bare) => bare.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && !host.contains(['[', ']', ':', '/', ' ']),
        };
        match port.parse() {
            Ok(port) if port != 0 && fits => {
                Ok(Endpoint::Tcp { host: bare.unwrap_or(host).to_owned(), port })
            }
            _ => Err(EndpointError),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Endpoint::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            Endpoint::Ipc(path) => write!(f, "ipc://{path}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_and_written() {
        for text in [
            "tcp://engine-0.svc:5557",
            "tcp://127.0.0.1:1",
            "tcp://[::1]:5557",
            "tcp://*:5557",
            "ipc:///run/kv",
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "tcp://",
            "tcp://x",
            "tcp://:1",
            "tcp://x:0",
            "tcp://x:65536",
            "tcp://::1:5",
            "udp://x:1",
            "ipc://",
        ] {
            assert_eq!(text.parse::<Endpoint>(), Err(EndpointError), "{text}");
        }
    }

    #[test]
    fn ranks_have_ports_of_their_own() {
        let base: Endpoint = "tcp://[::1]:65534".parse().unwrap();
        assert_eq!(base.of_rank(1).unwrap().to_string(), "tcp://[::1]:65535");
        assert_eq!((base.of_rank(2), base.of_rank(u32::MAX)), (None, None));
        let ipc = Endpoint::Ipc("/run/kv".into());
        assert_eq!((ipc.of_rank(0), ipc.of_rank(1)), (Some(ipc.clone()), None));
    }
}
