//! A program between the machines and etcd, honest or not.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tests::certificates::Authority;
use tests::wait::seconds;

/// Passes everything on, or answers with a certificate of another authority and notes what is sent to it.
pub(crate) struct Middle {
    pub(crate) address: SocketAddr,
    pub(crate) is_honest: Arc<AtomicBool>,
    /// How often it was asked as a liar, and what was said to it then.
    pub(crate) heard: Arc<Mutex<(usize, Vec<u8>)>>,
}

impl Middle {
    pub(crate) fn before(etcd: SocketAddr, folder: &Path) -> Self {
        let files = Authority::new("liar").folder(folder, "liar");
        let server = tls::server_of_anybody(&files.join("cert.pem"), &files.join("key.pem")).unwrap();
        let server = Arc::new(server);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let middle = Self {
            address: listener.local_addr().unwrap(),
            is_honest: Arc::new(AtomicBool::new(true)),
            heard: Arc::default(),
        };
        let (is_honest, heard) = (middle.is_honest.clone(), middle.heard.clone());
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let (server, heard) = (server.clone(), heard.clone());
                if is_honest.load(Ordering::SeqCst) {
                    std::thread::spawn(move || pass_on(near, etcd));
                } else {
                    std::thread::spawn(move || listen(near, server, &heard));
                }
            }
        });
        middle
    }
}

fn pass_on(near: TcpStream, etcd: SocketAddr) {
    let Ok(far) = TcpStream::connect(etcd) else { return };
    let (mut near_in, mut far_out) = (near.try_clone().unwrap(), far.try_clone().unwrap());
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut near_in, &mut far_out);
        let _ = far_out.shutdown(Shutdown::Both);
    });
    let (mut far_in, mut near_out) = (far, near);
    let _ = std::io::copy(&mut far_in, &mut near_out);
    let _ = near_out.shutdown(Shutdown::Both);
}

fn listen(near: TcpStream, server: Arc<rustls::ServerConfig>, heard: &Mutex<(usize, Vec<u8>)>) {
    heard.lock().unwrap().0 += 1;
    let _ = near.set_read_timeout(Some(seconds(5)));
    let connection = rustls::ServerConnection::new(server).unwrap();
    let mut stream = rustls::StreamOwned::new(connection, near);
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        heard.lock().unwrap().1.extend_from_slice(&bytes[..count]);
        let _ = stream.write_all(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n");
    }
}
