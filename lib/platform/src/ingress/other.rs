//! Nothing to do: the system takes packets for an address on its own interface only.

use std::io;

use socket2::Socket;

#[expect(clippy::unused_async, reason = "the signature is shared with linux.rs")]
pub(super) async fn install(
    _: Vec<Socket>,
    _: Option<String>,
) -> io::Result<impl Future<Output = ()> + Send + 'static> {
    Ok(std::future::pending())
}
