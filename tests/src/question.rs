//! DNS questions from an address of choice, over UDP or TCP.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RecordType};
use socket2::{Domain, Socket, Type};

use crate::http::connect;
use crate::wait::seconds;

/// Longest wait for an answer, in seconds; forwarding may take two seconds a server.
const ANSWER_LIMIT: u64 = 10;

/// A question.
#[derive(Clone, Debug)]
pub struct Question {
    name: Name,
    kind: RecordType,
    source: Option<IpAddr>,
    tcp: bool,
    limit: Duration,
}

impl Question {
    /// A question for records of a name; `kind` is the RFC's word, such as `A`.
    pub fn new(name: &str, kind: &str) -> Self {
        let name = Name::from_ascii(format!("{}.", name.trim_end_matches('.'))).expect("a name of a test");
        let kind = RecordType::from_str(kind).expect("a type of a test");
        Self { name, kind, source: None, tcp: false, limit: seconds(ANSWER_LIMIT) }
    }

    /// A question for IPv4 addresses.
    pub fn a(name: &str) -> Self {
        Self::new(name, "A")
    }

    /// The same from this address.
    #[must_use]
    pub fn from(mut self, source: &str) -> Self {
        self.source = Some(source.parse().expect("a source is an address"));
        self
    }

    /// The same over TCP.
    #[must_use]
    pub fn tcp(mut self) -> Self {
        self.tcp = true;
        self
    }

    /// The same with another limit.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Sends it and waits for the answer.
    ///
    /// # Errors
    ///
    /// When there is none within the limit.
    pub fn send(&self, to: SocketAddr) -> io::Result<Answer> {
        let bytes = self.message();
        let answer = if self.tcp { self.over_tcp(&bytes, to)? } else { self.over_udp(&bytes, to)? };
        if answer.get(..2) != bytes.get(..2) {
            return Err(io::Error::other("the answer has another id"));
        }
        Answer::read(&answer)
    }

    /// It as it is sent, each time with another id.
    pub fn message(&self) -> Vec<u8> {
        let mut message = Message::query();
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(self.name.clone(), self.kind));
        message.to_vec().expect("a question has a form in bytes")
    }

    /// Sends it; there has to be an answer.
    pub fn ask(&self, to: SocketAddr) -> Answer {
        self.send(to).unwrap_or_else(|error| panic!("{} {} of {to}: {error}", self.name, self.kind))
    }

    fn over_udp(&self, bytes: &[u8], to: SocketAddr) -> io::Result<Vec<u8>> {
        let socket = Socket::new(Domain::for_address(to), Type::DGRAM, None)?;
        if let Some(source) = self.source {
            socket.bind(&SocketAddr::new(source, 0).into())?;
        }
        socket.connect(&to.into())?;
        socket.set_read_timeout(Some(self.limit))?;
        let socket = std::net::UdpSocket::from(socket);
        socket.send(bytes)?;
        let mut answer = vec![0; 65_535];
        let length = socket.recv(&mut answer)?;
        answer.truncate(length);
        Ok(answer)
    }

    fn over_tcp(&self, bytes: &[u8], to: SocketAddr) -> io::Result<Vec<u8>> {
        let mut stream = connect(self.source, to, self.limit)?;
        let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
        stream.write_all(&[&length.to_be_bytes()[..], bytes].concat())?;
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let mut answer = vec![0; u16::from_be_bytes(length).into()];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer(pub Message);

impl Answer {
    /// The answer in these bytes.
    ///
    /// # Errors
    ///
    /// When they are no message.
    pub fn read(bytes: &[u8]) -> io::Result<Self> {
        Message::from_vec(bytes).map(Self).map_err(io::Error::other)
    }

    /// What the response code says, in the RFC's words.
    pub fn rcode(&self) -> String {
        use hickory_proto::op::ResponseCode as Code;
        match self.0.metadata.response_code {
            Code::NoError => "NOERROR".to_owned(),
            Code::FormErr => "FORMERR".to_owned(),
            Code::ServFail => "SERVFAIL".to_owned(),
            Code::NXDomain => "NXDOMAIN".to_owned(),
            Code::NotImp => "NOTIMP".to_owned(),
            Code::Refused => "REFUSED".to_owned(),
            other => other.to_string(),
        }
    }

    /// The answer records as `name ttl type data`, sorted, since answers rotate.
    pub fn records(&self) -> Vec<String> {
        let line = |record: &hickory_proto::rr::Record| {
            format!("{} {} {} {}", record.name, record.ttl, record.record_type(), record.data)
        };
        let mut lines: Vec<_> = self.0.answers.iter().map(line).collect();
        lines.sort();
        lines
    }

    /// The data of the answer records, sorted.
    pub fn data(&self) -> Vec<String> {
        let mut data: Vec<_> = self.0.answers.iter().map(|record| record.data.to_string()).collect();
        data.sort();
        data
    }

    /// Response code and data in one line, for tables: `NOERROR 192.0.2.1 192.0.2.2`.
    pub fn line(&self) -> String {
        std::iter::once(self.rcode()).chain(self.data()).collect::<Vec<_>>().join(" ")
    }
}
