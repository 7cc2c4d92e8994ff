//! The engine's socket.

use std::io;

pub(super) const DEFAULT_ENDPOINT: &str = "unix:///var/run/docker.sock";

pub(super) const WHO_MAY: &str = "run as root, or as a member of the group docker";

pub(super) use tokio::net::UnixStream as Stream;

pub(super) async fn connect(path: &str) -> io::Result<Stream> {
    Stream::connect(path).await
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn a_socket_is_connected_and_one_that_is_not_there_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("engine.sock").display().to_string();
        assert_eq!(connect(&path).await.unwrap_err().kind(), io::ErrorKind::NotFound);
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let (near, far) = tokio::join!(connect(&path), listener.accept());
        near.unwrap().write_all(b"ping").await.unwrap();
        let mut heard = [0; 4];
        far.unwrap().0.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"ping");
    }
}
