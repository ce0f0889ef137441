//! Connections: accepted, limited in number and time, with TLS where it is wanted, and drained at the end.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::app::App;
use crate::config::Address;
use crate::front;
use crate::tls::Tls;

/// A client has so long to send its head.
const HEAD_TIME: Duration = Duration::from_secs(15);
/// Longest head of a request.
const MAX_HEAD: usize = 64 << 10;
/// Most headers of a request.
const MAX_HEADERS: usize = 100;

/// What accepts connections.
pub enum Listener {
    /// A TCP port.
    Tcp(TcpListener),
    /// A socket in the file system.
    #[cfg(unix)]
    Unix(tokio::net::UnixListener, std::path::PathBuf),
}

/// A connection of any kind.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

impl Listener {
    /// Listens.
    ///
    /// # Errors
    /// What the system reports.
    pub async fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp { host, port } => Ok(Self::Tcp(TcpListener::bind((*host, *port)).await?)),
            #[cfg(unix)]
            Address::Unix(path) => {
                use std::os::unix::fs::{FileTypeExt, PermissionsExt};
                let old = std::fs::symlink_metadata(path);
                if old.is_ok_and(|old| old.file_type().is_socket())
                    && std::os::unix::net::UnixStream::connect(path).is_err()
                {
                    // Left by a server that was killed.
                    std::fs::remove_file(path)?;
                }
                let listener = tokio::net::UnixListener::bind(path)?;
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
                Ok(Self::Unix(listener, path.clone()))
            }
            #[cfg(not(unix))]
            Address::Unix(_) => Err(io::Error::other("this system has no such sockets")),
        }
    }

    /// Where it listens, for people.
    pub fn describe(&self, tls: bool) -> String {
        match self {
            Self::Tcp(listener) => {
                let scheme = if tls { "https" } else { "http" };
                listener
                    .local_addr()
                    .map_or_else(|_| scheme.into(), |address| format!("{scheme}://{address}"))
            }
            #[cfg(unix)]
            Self::Unix(_, path) => format!("unix:{}", path.display()),
        }
    }

    async fn accept(&self) -> io::Result<Box<dyn Io>> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Tokens are small and must not wait for each other.
                let _ = stream.set_nodelay(true);
                Ok(Box::new(stream))
            }
            #[cfg(unix)]
            Self::Unix(listener, _) => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}

#[cfg(unix)]
impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Serves until `stop` says so, then lets requests under way finish; whether all of them did.
pub async fn serve(
    app: Arc<App>,
    router: Router,
    listener: Listener,
    tls: Option<Tls>,
    stop: impl Future<Output = ()>,
) -> bool {
    let places = Arc::new(Semaphore::new(app.config.connections));
    let (ending, ended) = watch::channel(false);
    let mut stop = pin!(stop);
    let mut deadline = None;
    loop {
        let finished = async {
            match deadline {
                None => std::future::pending().await,
                Some(_) => idle(&app).await,
            }
        };
        let over = async {
            match deadline {
                None => std::future::pending().await,
                Some(deadline) => tokio::time::sleep_until(deadline).await,
            }
        };
        // New connections are still taken while others finish: they are told that the server ends.
        let accepted = tokio::select! {
            () = &mut stop, if deadline.is_none() => {
                app.drain();
                deadline = Some(tokio::time::Instant::now() + app.config.drain);
                continue;
            }
            () = finished => break,
            () = over => break,
            accepted = accept(&listener, &places) => accepted,
        };
        match accepted {
            Ok((stream, place)) => {
                let (app, router, tls, ended) =
                    (app.clone(), router.clone(), tls.clone(), ended.clone());
                tokio::spawn(async move {
                    let _place = place;
                    match tls {
                        None => connection(app, router, stream, ended).await,
                        Some(tls) => {
                            if let Ok(Ok(stream)) =
                                tokio::time::timeout(HEAD_TIME, tls.accept(stream)).await
                            {
                                connection(app, router, stream, ended).await;
                            }
                        }
                    }
                });
            }
            // Out of descriptors, for example: others may end soon.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    let complete = app.metrics.in_flight.load(Relaxed) == 0;
    let _ = ending.send(true);
    // Connections that have nothing to say close at once; bytes of the last answers are still written.
    let closing = async {
        while places.available_permits() < app.config.connections {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_millis(if complete { 1000 } else { 100 }), closing)
        .await;
    complete
}

async fn accept(
    listener: &Listener,
    places: &Arc<Semaphore>,
) -> io::Result<(Box<dyn Io>, OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
    Ok((listener.accept().await?, place))
}

/// Waits until no request is under way.
async fn idle(app: &App) {
    while app.metrics.in_flight.load(Relaxed) > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn connection(
    app: Arc<App>,
    router: Router,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    mut ended: watch::Receiver<bool>,
) {
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let (app, router) = (app.clone(), router.clone());
        async move {
            let response = front::answer(app, router, request.map(Body::new)).await;
            Ok::<_, std::convert::Infallible>(response)
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        // An error is the client's: what it sent was no HTTP, or it went away.
        _ = connection.as_mut() => return,
        _ = ended.wait_for(|ended| *ended) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}
