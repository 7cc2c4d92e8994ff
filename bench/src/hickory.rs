//! A plain hickory-server, as a service would be built without own sockets and own messages: a hash map behind its trait.
//!
//! Not with its own zone in memory, which looks through all names for each one that does not exist.

use std::collections::HashMap;
use std::net::SocketAddr;

use hickory_server::net::runtime::Time;
use hickory_server::proto::op::{HeaderCounts, MessageType, Metadata, OpCode, ResponseCode};
use hickory_server::proto::rr::rdata::{A, SOA};
use hickory_server::proto::rr::{LowerName, Name, RData, Record};
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo, Server};
use hickory_server::zone_handler::MessageResponseBuilder;
use tokio::net::{TcpListener, UdpSocket};

use crate::{Failure, names};

/// How long a connection may be silent.
const TCP_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// Replies that wait for a slow reader of a connection.
const TCP_REPLIES: usize = 64;

struct Names {
    addresses: HashMap<LowerName, Record>,
    soa: Record,
}

impl Names {
    fn new() -> Result<Self, Failure> {
        let zone = Name::from_ascii(format!("{}.", names::ZONE))?;
        let soa = SOA::new(zone.clone(), zone.clone(), 1, 3600, 600, 86400, 1);
        let soa = Record::from_rdata(zone, 1, RData::SOA(soa));
        let addresses = names::all().map(|(name, address)| {
            let name = Name::from_ascii(format!("{name}."))?;
            Ok((LowerName::from(&name), Record::from_rdata(name, 1, RData::A(A(address)))))
        });
        Ok(Self { addresses: addresses.collect::<Result<_, Failure>>()?, soa })
    }
}

#[async_trait::async_trait]
impl RequestHandler for Names {
    async fn handle_request<R: ResponseHandler, T: Time>(&self, request: &Request, mut response: R) -> ResponseInfo {
        let mut metadata = Metadata::response_from_request(&request.metadata);
        metadata.authoritative = true;
        let found = request.request_info().ok().and_then(|info| self.addresses.get(info.query.name()));
        let soa = if found.is_none() {
            metadata.response_code = ResponseCode::NXDomain;
            Some(&self.soa)
        } else {
            None
        };
        let builder = MessageResponseBuilder::from_message_request(request);
        let message = builder.build(metadata, found, [], soa, []);
        response.send_response(message).await.unwrap_or_else(|_| {
            let mut metadata = Metadata::new(0, MessageType::Response, OpCode::Query);
            metadata.response_code = ResponseCode::ServFail;
            ResponseInfo::from(hickory_server::proto::op::Header { metadata, counts: HeaderCounts::default() })
        })
    }
}

/// Serves until the process is ended.
pub(crate) fn serve(listen: SocketAddr) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut server = Server::new(Names::new()?);
        server.register_socket(UdpSocket::from_std(platform::socket::udp_socket(listen)?)?);
        let listener = TcpListener::from_std(platform::socket::tcp_listener(listen)?)?;
        server.register_listener(listener, TCP_TIMEOUT, TCP_REPLIES);
        server.block_until_done().await?;
        Ok(())
    })
}
