//! Questions to services as their clients ask them, over plain sockets: they work in a container's network too.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};

/// Longest wait for any answer; all of them are on this machine.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Longest answer over HTTP that is read: the containers of a cluster of 100,000.
const BODY_MAX: u64 = 256 << 20;

/// The status of a response to a request without a session token (`--tokens required`).
const UNAUTHORIZED: u16 = 401;

/// The headers of a request for a session token, which is used at once.
const TOKEN_REQUEST: &str = "X-aws-ec2-metadata-token-ttl-seconds: 60\r\nContent-Length: 0\r\n";

/// The status and the body of a page; with a session token where one is required.
pub(super) fn http(service: SocketAddr, path: &str, accept: &str) -> io::Result<(u16, String)> {
    let (get, accept) = (format!("GET {path}"), format!("Accept: {accept}\r\n"));
    let answer = request(service, &get, &accept)?;
    if answer.0 != UNAUTHORIZED {
        return Ok(answer);
    }
    let (status, token) = request(service, "PUT /latest/api/token", TOKEN_REQUEST)?;
    if status != 200 || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(answer);
    }
    request(service, &get, &format!("{accept}X-aws-ec2-metadata-token: {token}\r\n"))
}

/// The status and the body of the answer to a request.
fn request(service: SocketAddr, line: &str, headers: &str) -> io::Result<(u16, String)> {
    let mut stream = connect(service)?;
    // Of this version neither chunks nor further answers come.
    write!(stream, "{line} HTTP/1.0\r\nHost: {service}\r\n{headers}\r\n")?;
    let mut answer = Vec::new();
    stream.take(BODY_MAX).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| io::Error::other("the answer is not HTTP"))?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or_else(|| io::Error::other("the answer is not HTTP"))?, body.to_owned()))
}

/// Whether a text can be asked for as a name.
pub(super) fn is_name(text: &str) -> bool {
    question(text).is_ok()
}

/// The code and the IPv4 addresses of a name, by UDP.
pub(super) fn udp(dns: SocketAddr, name: &str) -> io::Result<(ResponseCode, Vec<IpAddr>)> {
    let socket = UdpSocket::bind(if dns.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.set_read_timeout(Some(ANSWER_WITHIN))?;
    socket.connect(dns)?;
    socket.send(&question(name)?)?;
    let mut answer = [0; 1500];
    let length = socket.recv(&mut answer)?;
    read(&answer[..length])
}

/// The same by TCP.
pub(super) fn tcp(dns: SocketAddr, name: &str) -> io::Result<(ResponseCode, Vec<IpAddr>)> {
    let mut stream = connect(dns)?;
    let question = question(name)?;
    let length = u16::try_from(question.len()).map_err(io::Error::other)?.to_be_bytes();
    stream.write_all(&[&length[..], &question].concat())?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut answer)?;
    read(&answer)
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, ANSWER_WITHIN)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.set_write_timeout(Some(ANSWER_WITHIN))?;
    Ok(stream)
}

fn question(name: &str) -> io::Result<Vec<u8>> {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    let name = Name::from_ascii(format!("{name}.")).map_err(io::Error::other)?;
    message.add_query(Query::query(name, RecordType::A));
    message.to_vec().map_err(io::Error::other)
}

fn read(bytes: &[u8]) -> io::Result<(ResponseCode, Vec<IpAddr>)> {
    let answer = Message::from_vec(bytes).map_err(|_| io::Error::other("the answer is not DNS"))?;
    let addresses = answer.answers.iter().filter_map(|record| match &record.data {
        RData::A(address) => Some(IpAddr::V4(address.0)),
        _ => None,
    });
    Ok((answer.metadata.response_code, addresses.collect()))
}
