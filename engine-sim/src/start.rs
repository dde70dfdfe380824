//! Starting and stopping an engine within a process.

use crate::config::{Config, ConfigError};
use crate::engine::EngineHandle;
use crate::http;
use crate::publisher::{EventEndpoints, Publisher};
use crate::text::{Text, TextError};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Requests that still run when the engine is stopped are cut after this.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(500);

/// Why an engine did not start. The flag is the one to change.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A value that cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model's files.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The address cannot be listened on, most often because another process does.
    #[error("{flag}: cannot listen on {address}")]
    Listen {
        /// The flag.
        flag: &'static str,
        /// What it names.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// Not `tcp://HOST:PORT`.
    #[error("{flag}: {endpoint:?} is not tcp://HOST:PORT")]
    NotAnEndpoint {
        /// The flag.
        flag: &'static str,
        /// Its value.
        endpoint: String,
    },
    /// The ZeroMQ socket did not take the listener.
    #[error("{flag}: {reason}")]
    Socket {
        /// The flag.
        flag: &'static str,
        /// Why.
        reason: String,
    },
}

/// A running engine. Dropping it stops the engine without waiting.
#[derive(Debug)]
pub struct EngineSim {
    http: SocketAddr,
    endpoints: Option<EventEndpoints>,
    stop: CancellationToken,
    server: JoinHandle<()>,
}

impl EngineSim {
    /// Loads the model's tokenizer, binds all sockets and serves. Needs a tokio runtime with time and I/O.
    pub async fn start(config: Config) -> Result<EngineSim, StartError> {
        config.validate()?;
        let text = Text::load(&config.model)?;
        let (listener, http) = bind("--http", &config.http.to_string())?;
        let stop = CancellationToken::new();
        let guard = stop.clone().drop_guard();
        let (publisher, endpoints) = match &config.events {
            Some(events) => {
                let started = Publisher::start(events, config.cache.release, stop.clone()).await?;
                (Some(started.0), Some(started.1))
            }
            None => (None, None),
        };
        let engine = EngineHandle::start(&config, publisher, stop.clone());
        let router = http::router(config, text, engine, endpoints.clone());
        let server = tokio::spawn(http::serve(listener, router, stop.clone(), SHUTDOWN_GRACE));
        guard.disarm();
        Ok(EngineSim { http, endpoints, stop, server })
    }

    /// Address of the OpenAI server.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// Endpoints of the event sockets.
    pub fn endpoints(&self) -> Option<&EventEndpoints> {
        self.endpoints.as_ref()
    }

    /// Stops: no goodbye on the event socket, requests still running are cut off.
    pub async fn stop(mut self) {
        self.stop.cancel();
        // A panic of the server was reported when it happened.
        let _ = (&mut self.server).await;
    }
}

impl Drop for EngineSim {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A non-blocking listener on `address` and its address with the port resolved.
pub(crate) fn bind(flag: &'static str, address: &str) -> Result<(TcpListener, SocketAddr), StartError> {
    let listen = || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let local = listener.local_addr()?;
        Ok((listener, local))
    };
    listen().map_err(|source| StartError::Listen { flag, address: address.to_owned(), source })
}
