//! Accepting: connections, TLS where it is asked for, and who the client is by its certificate.

use std::future::ready;

use axum::{Extension, Router};
use process::quota::Places;
use process::{Acceptor, serve_connections};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::api::caller::PeerName;

/// Most connections at once. Starting takes long, so most of them only wait. One client may have a quarter of them, which is
/// enough for a pipeline that starts some thousand containers, each over a connection of its own.
const PLACES: Places = Places { per_client: 4096, in_all: 16_384 };

pub(super) async fn accept(listener: Acceptor, tls: Option<TlsAcceptor>, router: Router, stop: CancellationToken) {
    let Some(tls) = tls else {
        let open = move |stream| ready(Some((stream, router.clone())));
        return serve_connections(listener, PLACES, open, stop).await;
    };
    let open = move |stream| {
        let (agreeing, router) = (tls.accept(stream), router.clone());
        async move {
            let stream = agreeing.await.inspect_err(|error| debug!(%error, "no TLS")).ok()?;
            let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
            let peer = PeerName(certificate.and_then(tls::name_of));
            Some((stream, router.layer(Extension(peer))))
        }
    };
    serve_connections(listener, PLACES, open, stop).await;
}
