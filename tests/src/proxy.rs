//! A proxy before a metadata service: it notes what is asked, and can hide what the predecessor did not have.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// What rancher-metadata answers to a version that it does not know.
const NO_SUCH_VERSION: &[u8] = b"HTTP/1.1 404 Not Found\r\nAccess-Control-Allow-Origin: *\r\n\
    Content-Type: text/plain; charset=utf-8\r\nContent-Length: 15\r\n\r\nInvalid version";

/// A proxy; its threads end with the connections, at the latest with the process.
#[derive(Clone, Debug)]
pub struct Proxy {
    /// Where it listens.
    pub address: SocketAddr,
    targets: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    /// A proxy before `server`, showing everything it has.
    pub fn before(server: SocketAddr) -> Self {
        Self::start(server, "")
    }

    /// A proxy that answers like the predecessor to targets that begin with `hidden`.
    pub fn hiding(hidden: &'static str, server: SocketAddr) -> Self {
        Self::start(server, hidden)
    }

    fn start(server: SocketAddr, hidden: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let proxy = Self { address, targets: Arc::default() };
        let serving = proxy.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let serving = serving.clone();
                // A broken connection is the end of that connection only.
                std::thread::spawn(move || drop(serving.connection(client, server, hidden)));
            }
        });
        proxy
    }

    /// The targets that were asked for up to now.
    pub fn targets(&self) -> Vec<String> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many of them fit.
    pub fn count(&self, fits: impl Fn(&str) -> bool) -> usize {
        self.targets().iter().filter(|target| fits(target)).count()
    }

    fn connection(&self, mut client: TcpStream, server: SocketAddr, hidden: &str) -> io::Result<()> {
        let mut upstream = TcpStream::connect(server)?;
        let (mut answers, mut back) = (upstream.try_clone()?, client.try_clone()?);
        let answering = std::thread::spawn(move || {
            let copied = io::copy(&mut answers, &mut back);
            let _ = back.shutdown(Shutdown::Both);
            copied
        });
        // The follower asks for nothing with a body, and for one thing at a time.
        while let Some(head) = head(&mut client)? {
            let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
            let is_hidden = !hidden.is_empty() && target.starts_with(hidden);
            self.targets.lock().unwrap_or_else(PoisonError::into_inner).push(target);
            if is_hidden {
                client.write_all(NO_SUCH_VERSION)?;
            } else {
                upstream.write_all(head.as_bytes())?;
            }
        }
        upstream.shutdown(Shutdown::Both)?;
        let _ = answering.join();
        Ok(())
    }
}

/// The next head; `None` at the end.
fn head(client: &mut TcpStream) -> io::Result<Option<String>> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if client.read(&mut byte)? == 0 {
            return Ok(None);
        }
        head.push(byte[0]);
    }
    Ok(Some(String::from_utf8_lossy(&head).into_owned()))
}
