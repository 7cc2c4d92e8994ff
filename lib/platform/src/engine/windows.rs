//! The engine's named pipe.

use std::io;
use std::time::Duration;

use tokio::net::windows::named_pipe::ClientOptions;
use windows_sys::Win32::Foundation::ERROR_PIPE_BUSY;

pub(super) const DEFAULT_ENDPOINT: &str = "npipe:////./pipe/docker_engine";

pub(super) const WHO_MAY: &str = "run as an administrator, or as a member of the engine's group (docker-users)";

/// How often a pipe is tried that is taken, and the pause between two tries.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);

pub(super) use tokio::net::windows::named_pipe::NamedPipeClient as Stream;

pub(super) async fn connect(path: &str) -> io::Result<Stream> {
    let mut tries = 1;
    loop {
        match ClientOptions::new().open(path) {
            Err(error) if tries < TRIES && error.raw_os_error() == Some(ERROR_PIPE_BUSY.cast_signed()) => {
                tries += 1;
                tokio::time::sleep(PAUSE).await;
            }
            opened => return opened,
        }
    }
}

/// There is none.
pub(super) type Accepted = tokio::io::DuplexStream;

/// Nothing listens: which accounts may use a pipe would have to be given by its creator, and could be tried on a real
/// Windows only.
#[derive(Debug)]
pub(super) enum Listener {}

pub(super) fn listen(_: &str, _: Option<&str>) -> io::Result<Listener> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this works on Linux only"))
}

impl Listener {
    #[expect(clippy::unused_async, reason = "as on Linux; there is no listener to wait for")]
    pub(super) async fn accept(&self) -> Accepted {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::windows::named_pipe::ServerOptions;

    use super::*;

    #[tokio::test]
    async fn a_taken_pipe_is_waited_for_and_one_that_is_not_there_is_not() {
        let path = format!("//./pipe/berth-test-{}", std::process::id());
        assert_eq!(connect(&path).await.unwrap_err().kind(), io::ErrorKind::NotFound);
        let first = ServerOptions::new().first_pipe_instance(true).create(&path).unwrap();
        let taken = connect(&path).await.unwrap();
        let (second, near) = tokio::join!(
            async {
                tokio::time::sleep(PAUSE).await;
                ServerOptions::new().create(&path).unwrap()
            },
            connect(&path)
        );
        near.unwrap().write_all(b"ping").await.unwrap();
        let mut heard = [0; 4];
        let mut second = second;
        second.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"ping");
        drop((first, taken));
    }
}
