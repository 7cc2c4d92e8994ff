//! Addresses through rtnetlink.

use std::io;
use std::net::IpAddr;

use futures_util::TryStreamExt;
use rtnetlink::packet_route::address::{AddressHeaderFlags, AddressMessage};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use rtnetlink::{AddressMessageBuilder, Handle};

use super::{Interface, host_prefix};

pub(super) const WAY_OUT: &str =
    "run as root with the capability NET_ADMIN (docker run --cap-add NET_ADMIN), or let somebody else add the address";

/// A conversation with the kernel about the addresses of the network namespace of the calling thread.
pub(super) struct Addresses(Handle);

impl Addresses {
    pub(super) fn open() -> io::Result<Self> {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        // Ends when the handle is dropped.
        tokio::spawn(connection);
        Ok(Self(handle))
    }

    pub(super) async fn interfaces(&mut self) -> io::Result<Vec<Interface>> {
        let links: Vec<LinkMessage> = self.0.link().get().execute().try_collect().await.map_err(into_io)?;
        Ok(links.into_iter().map(interface).collect())
    }

    /// Indices of the interfaces that have the address, whatever the prefix.
    pub(super) async fn holders(&mut self, address: IpAddr) -> io::Result<Vec<u32>> {
        let request = self.0.address().get().set_address_filter(address);
        let found: Vec<AddressMessage> = request.execute().try_collect().await.map_err(into_io)?;
        Ok(found.into_iter().map(|message| message.header.index).collect())
    }

    /// Whether it was added: `false` when somebody was faster.
    pub(super) async fn add(&mut self, address: IpAddr, interface: u32) -> io::Result<bool> {
        let mut request = self.0.address().add(interface, address, host_prefix(address));
        if address.is_ipv6() {
            // Duplicate address detection takes a second or two in which the address cannot be bound.
            request.message_mut().header.flags |= AddressHeaderFlags::Nodad;
        }
        match request.execute().await.map_err(into_io) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn remove(&mut self, address: IpAddr, interface: u32) -> io::Result<()> {
        let prefix = host_prefix(address);
        let message = match address {
            IpAddr::V4(v4) => {
                AddressMessageBuilder::<std::net::Ipv4Addr>::new().index(interface).address(v4, prefix).build()
            }
            IpAddr::V6(v6) => {
                AddressMessageBuilder::<std::net::Ipv6Addr>::new().index(interface).address(v6, prefix).build()
            }
        };
        match self.0.address().del(message).execute().await.map_err(into_io) {
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EADDRNOTAVAIL | libc::ENODEV)) => Err(error),
            _ => Ok(()),
        }
    }
}

pub(super) fn same_name(left: &str, right: &str) -> bool {
    left == right
}

fn interface(link: LinkMessage) -> Interface {
    let flags = link.header.flags;
    let name = link.attributes.into_iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name),
        _ => None,
    });
    Interface {
        index: link.header.index,
        name: name.unwrap_or_default(),
        loopback: flags.contains(LinkFlags::Loopback),
        up: flags.contains(LinkFlags::Up),
        running: flags.contains(LinkFlags::Running),
    }
}

fn into_io(error: rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.to_io(),
        error => io::Error::other(error),
    }
}
