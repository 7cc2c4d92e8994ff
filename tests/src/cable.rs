//! Cables that can be pulled: connections to something that listens on TCP.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::wait::LOOK_INTERVAL;

/// A cable to something that listens on TCP, which can be pulled and plugged in again.
#[derive(Clone, Debug)]
pub struct Cable {
    /// Where the near end is.
    pub address: SocketAddr,
    ends: Arc<Mutex<Ends>>,
    bytes: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Ends {
    pulled: bool,
    hangs: bool,
    /// What comes from the far end is lost when one of these is in it.
    lost: Vec<String>,
    streams: Vec<TcpStream>,
}

impl Cable {
    /// A cable to `server`.
    pub fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let cable = Self { address, ends: Arc::default(), bytes: Arc::default() };
        let serving = cable.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                // What cannot be connected is closed, as by a member that is not there.
                let _ = serving.connect(near, server);
            }
        });
        cable
    }

    /// The address as that of a member.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Breaks all connections, and lets no new ones through.
    pub fn pull(&self) {
        let mut ends = self.ends();
        ends.pulled = true;
        for stream in ends.streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Lets connections through again.
    pub fn plug_in(&self) {
        self.ends().pulled = false;
    }

    /// Lets nothing through for as long as it hangs: connections stay, new ones are made, and say nothing.
    pub fn hang(&self, hangs: bool) {
        self.ends().hangs = hangs;
    }

    /// Waits while it hangs.
    fn wait(&self) {
        while self.ends().hangs {
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Loses each piece from the far end in which one of these texts is; of a watch, that is an answer.
    pub fn lose(&self, texts: &[String]) {
        self.ends().lost = texts.to_vec();
    }

    /// How many bytes came from the far end.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(&self, near: TcpStream, server: SocketAddr) -> std::io::Result<()> {
        let mut ends = self.ends();
        if ends.pulled {
            return Ok(());
        }
        let far = TcpStream::connect(server)?;
        for stream in [&near, &far] {
            stream.set_nodelay(true)?;
            ends.streams.push(stream.try_clone()?);
        }
        let (there, back) = (self.clone(), self.clone());
        copy(near.try_clone()?, far.try_clone()?, move |_| {
            there.wait();
            true
        });
        copy(far, near, move |piece| {
            back.wait();
            back.comes_through(piece)
        });
        Ok(())
    }

    fn comes_through(&self, piece: &[u8]) -> bool {
        self.bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
        let is_in = |text: &String| piece.windows(text.len()).any(|window| window == text.as_bytes());
        !self.ends().lost.iter().any(is_in)
    }
}

/// Copies until one end is closed, on a thread of its own, which ends with the connection.
fn copy(mut from: TcpStream, mut to: TcpStream, comes_through: impl Fn(&[u8]) -> bool + Send + 'static) {
    std::thread::spawn(move || {
        let mut bytes = [0; 16 << 10];
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            if comes_through(&bytes[..length]) && to.write_all(&bytes[..length]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    });
}
