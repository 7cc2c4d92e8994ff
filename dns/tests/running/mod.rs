//! The executable as tests start it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

/// The executable, until this is dropped.
pub(crate) struct Dns {
    child: Child,
    pub(crate) address: SocketAddr,
    admin: SocketAddr,
}

impl Drop for Dns {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Dns {
    /// Starts it with these arguments and this cluster.
    pub(crate) fn start(arguments: &[&str], cluster: &str) -> (Self, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("cluster.yml"), cluster).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_dns"))
            .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-format", "json"])
            .args(["--answers", "cluster.yml"])
            .args(arguments)
            // The name servers of the machine are not a test's to ask.
            .env("BERTH_DNS_UPSTREAM", "127.0.0.1:1")
            .current_dir(&folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut address, mut admin) = (None, None);
        // It logs to one of both; the other one is closed at its end only.
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut lines = log.lines().map_while(Result::ok);
        while address.is_none() || admin.is_none() {
            let line: Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
            if line["service"] == "dns" {
                address = line["address"].as_str().unwrap().parse().ok();
            }
            let message = line["message"].as_str().unwrap_or_default();
            if let Some(url) = message.strip_prefix("admin pages on http://") {
                admin = url.parse().ok();
            }
        }
        std::thread::spawn(move || lines.for_each(drop));
        (Self { child, address: address.unwrap(), admin: admin.unwrap() }, folder)
    }

    /// A page of the admin listener.
    pub(crate) fn page(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.admin).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.admin).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    /// Asks for the IPv4 address of a name; gives the code of the answer.
    pub(crate) fn ask(&self, name: &str) -> u8 {
        let mut message = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0".to_vec();
        for label in name.split('.') {
            message.push(u8::try_from(label.len()).unwrap());
            message.extend_from_slice(label.as_bytes());
        }
        message.extend_from_slice(b"\0\0\x01\0\x01");
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        socket.send_to(&message, self.address).unwrap();
        let mut reply = [0; 512];
        socket.recv(&mut reply).unwrap();
        reply[3] & 15
    }
}
