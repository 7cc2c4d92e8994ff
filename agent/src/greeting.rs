//! What `agent up` prints when it serves: what is where, and lines to paste.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use live::Origin;
use platform::console;

/// The addresses that are served.
pub(crate) struct Serving {
    pub(crate) metadata: SocketAddr,
    pub(crate) dns: SocketAddr,
    pub(crate) scheduler: SocketAddr,
    /// The page to look at, if there is one.
    pub(crate) page: Option<String>,
    /// Whether containers are served, and not just a first look on loopback.
    pub(crate) for_containers: bool,
}

impl Serving {
    /// What is served where, and three lines to paste; or `reasons` why there is nothing new to serve.
    pub(crate) fn greeting(&self, origin: &Origin, reasons: &BTreeMap<&str, String>) -> String {
        let Self { metadata, dns, scheduler, .. } = self;
        let reasons: Vec<_> = reasons.values().map(String::as_str).collect();
        let (head, lines) = if reasons.is_empty() {
            (format!("Berth serves the {origin}"), self.lines(origin))
        } else {
            (
                format!("Berth is not ready to serve the {origin}: {}", reasons.join("; ")),
                "It serves as soon as that changes; until then the last good state, if there is one.\n".to_owned(),
            )
        };
        let page = self.page.as_ref().map_or_else(String::new, |page| format!("  page       {page}\n"));
        format!(
            "{head}\n\
             \x20 metadata   http://{metadata}\n\
             \x20 dns        {dns} (UDP and TCP)\n\
             \x20 scheduler  http://{scheduler}\n\
             {page}\
             \n\
             {lines}\
             \n\
             Ctrl-C ends it.\n"
        )
    }

    /// Lines to paste into what people type into on this system.
    fn lines(&self, origin: &Origin) -> String {
        let Self { metadata, dns, scheduler, for_containers, .. } = self;
        let (ip, port) = (dns.ip(), dns.port());
        let unreachable = if metadata.ip().is_loopback() {
            "No container can ask loopback addresses; to serve containers, add --serve-containers.\n"
        } else {
            ""
        };
        match (origin, console::OF_WINDOWS) {
            _ if *for_containers => format!(
                "Try (with an image that has these commands, such as busybox):\n\
                 \x20 docker run --rm busybox wget -qO- http://{metadata}/latest/self/container/name\n\
                 \x20 docker run --rm --dns {ip} busybox nslookup rancher-metadata.rancher.internal\n\
                 \x20 curl http://{scheduler}/v1/hosts\n"
            ),
            (Origin::Source(_), true) => format!(
                "Try (with examples\\shop.yml):\n\
                 \x20 curl.exe --interface 127.42.1.11 http://{metadata}/latest/self/container/name\n\
                 \x20 nslookup -type=A -port={port} web.shop.rancher.internal. {ip}\n\
                 \x20 curl.exe http://{scheduler}/v1/hosts\n"
            ),
            (Origin::Docker(_) | Origin::Etcd(_), true) => format!(
                "{unreachable}Try (with the name of a running container):\n\
                 \x20 curl.exe http://{metadata}/latest/containers\n\
                 \x20 nslookup -type=A -port={port} NAME.rancher.internal. {ip}\n\
                 \x20 curl.exe http://{scheduler}/v1/hosts\n"
            ),
            (Origin::Source(_), false) => format!(
                "Try (with examples/shop.yml):\n\
                 \x20 curl --interface 127.42.1.11 http://{metadata}/latest/self/container/name\n\
                 \x20 dig -b 127.42.1.11 @{ip} -p {port} db +short\n\
                 \x20 curl http://{scheduler}/v1/placements -d '{{\"image\": \"web\", \"resources\": {{\"memory\": \"4GiB\"}}, \"dry_run\": true}}'\n"
            ),
            (Origin::Docker(_) | Origin::Etcd(_), false) => format!(
                "{unreachable}Try (with the name of a running container):\n\
                 \x20 curl http://{metadata}/latest/containers\n\
                 \x20 dig @{ip} -p {port} NAME.rancher.internal +short\n\
                 \x20 curl http://{scheduler}/v1/hosts\n"
            ),
        }
    }
}
