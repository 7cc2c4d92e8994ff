//! The options of the DNS service and their defaults.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};

use crate::edns::NSID_BYTES_MAX;
use crate::name::Folded;
use crate::response_rate::{PER_SECOND, PER_SECOND_MAX};
use crate::upstream::Upstream;
use crate::zone::{Settings, WhenNoneHealthy};

/// Flags of the DNS service.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub struct Options {
    /// Seconds for which clients may cache a name of the cluster.
    ///
    /// Short by default: containers come and go.
    #[arg(long, env = "BERTH_DNS_TTL", value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(..=2_147_483_647))]
    pub ttl: u32,

    /// Seconds for which clients may cache the answer that a name of the cluster does not exist.
    ///
    /// Windows caches it for 15 minutes when no time is given.
    #[arg(long, env = "BERTH_DNS_NEGATIVE_TTL", value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(..=2_147_483_647))]
    pub negative_ttl: u32,

    /// Seconds that one upstream may take to answer.
    #[arg(long, env = "BERTH_DNS_RECURSER_TIMEOUT", value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub recurser_timeout: Duration,

    /// Try search lists only for names with fewer dots than this; 0 tries them for all names.
    #[arg(long, env = "BERTH_DNS_NDOTS", default_value_t = 0)]
    pub ndots: usize,

    /// How many answers of upstreams are cached.
    #[arg(long, env = "BERTH_DNS_CACHE_CAPACITY", value_name = "ANSWERS", default_value_t = 10_000)]
    pub cache_capacity: usize,

    /// Addresses that are never used as upstreams, even if a container or an option names them (comma-separated).
    #[arg(
        long,
        env = "NEVER_RECURSE_TO",
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "169.254.169.250,169.254.169.251"
    )]
    pub never_recurse_to: Vec<IpAddr>,

    /// Addresses of the name `rancher-metadata` (comma-separated).
    #[arg(
        long,
        env = "RANCHER_METADATA_ANSWER",
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "169.254.169.250"
    )]
    pub rancher_metadata_answer: Vec<IpAddr>,

    /// Domain under which the names of the cluster stand.
    #[arg(long, env = "BERTH_DNS_DOMAIN", value_name = "NAME", default_value = "rancher.internal", value_parser = domain_name)]
    pub domain: Folded,

    /// Name server for everything else, instead of the operating system's; may be given several times.
    #[arg(long = "upstream", env = "BERTH_DNS_UPSTREAM", value_name = "ADDR[:PORT]", value_delimiter = ',')]
    pub upstreams: Vec<Upstream>,

    /// Name server for one domain and all below it, for all clients; may be given several times.
    ///
    /// Names below it may lead to any address. Those of others may not lead to loopback, link-local and container addresses:
    /// such answers are dropped. A domain without an address is asked of the usual upstreams.
    #[arg(
        long = "private-upstream",
        env = "BERTH_DNS_PRIVATE_UPSTREAM",
        value_name = "DOMAIN[=ADDR[:PORT]]",
        value_delimiter = ','
    )]
    pub private_upstreams: Vec<PrivateUpstream>,

    /// Name of this server, sent to clients that ask for it (NSID, RFC 5001).
    #[arg(long, env = "BERTH_DNS_NSID", value_name = "TEXT", value_parser = server_name)]
    pub nsid: Option<String>,

    /// Responses over UDP to one network (/24, /56) of clients within a second, of each class: with records, without records,
    /// failures; 0 does not limit them.
    ///
    /// Of those beyond it every second one is sent truncated, so that its client repeats the query over TCP. The limit does not
    /// apply to this host, its containers, and clients that send a valid cookie (RFC 7873).
    #[arg(
        long,
        env = "BERTH_DNS_RESPONSES_PER_SECOND",
        value_name = "NUMBER",
        default_value_t = PER_SECOND,
        value_parser = clap::value_parser!(u32).range(..=PER_SECOND_MAX)
    )]
    pub responses_per_second: u32,

    /// Log one of so many questions, chosen at random; 0 logs none, 1 all.
    #[arg(long, env = "BERTH_DNS_QUERY_LOG", value_name = "ONE_OF", default_value_t = 0)]
    pub query_log: u32,

    /// Which containers of a service to name when not one of them is healthy.
    #[arg(long, env = "BERTH_DNS_WHEN_NONE_HEALTHY", value_name = "WHICH", value_enum, default_value_t)]
    pub when_none_healthy: WhenNoneHealthy,

    /// Name all members of a service that run when fewer of them than this are healthy, in per cent; 0 never does it.
    #[arg(long, env = "BERTH_DNS_PANIC_THRESHOLD", value_name = "PER_CENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=100))]
    pub panic_threshold: u8,

    /// Address to answer queries over TLS on [default port: 853]
    #[arg(long, env = "BERTH_DNS_DOT", value_name = "ADDRESS[:PORT]", help_heading = ENCRYPTED, requires = "dns_tls_certs", value_parser = dot_address)]
    pub dot: Option<SocketAddr>,

    /// Address to answer queries over HTTPS on, at the path /dns-query [default port: 443]
    #[arg(long, env = "BERTH_DNS_DOH", value_name = "ADDRESS[:PORT]", help_heading = ENCRYPTED, requires = "dns_tls_certs", value_parser = doh_address)]
    pub doh: Option<SocketAddr>,

    /// Folder with cert.pem and key.pem for --dot and --doh, which are read again when they change
    #[arg(long, env = "BERTH_DNS_TLS_CERTS", value_name = "DIR", help_heading = ENCRYPTED)]
    pub dns_tls_certs: Option<PathBuf>,
}

/// The topic of the flags for encrypted queries.
const ENCRYPTED: &str = "Encrypted DNS";

impl From<&Options> for Settings {
    fn from(options: &Options) -> Self {
        Self {
            domain: options.domain.clone(),
            ttl: options.ttl,
            negative_ttl: options.negative_ttl,
            ndots: options.ndots,
            when_none_healthy: options.when_none_healthy,
            panic_threshold: options.panic_threshold,
            rancher_metadata: options.rancher_metadata_answer.clone(),
            never_recurse_to: options.never_recurse_to.clone(),
            listen: None,
        }
    }
}

impl ValueEnum for WhenNoneHealthy {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Last, Self::All, Self::None]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self {
            Self::Last => PossibleValue::new("last").help("The last running one of its list, as the predecessor did"),
            Self::All => PossibleValue::new("all").help("All that run"),
            Self::None => PossibleValue::new("none").help("None"),
        })
    }
}

/// A domain whose names may lead to any address, and its name server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateUpstream {
    /// The domain, which includes all names below it.
    pub domain: Folded,
    /// Who is asked, when it is not the usual upstreams.
    pub upstream: Option<Upstream>,
}

impl FromStr for PrivateUpstream {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (domain, upstream) = match text.split_once('=') {
            Some((domain, upstream)) => (domain, Some(upstream.parse()?)),
            // An address alone is a mistake, not a domain.
            None if text.parse::<Upstream>().is_ok() => return Err(format!("expected DOMAIN[=ADDR], found {text:?}")),
            None => (text, None),
        };
        Ok(Self { domain: domain_name(domain)?, upstream })
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("expected seconds, found {text:?}"))?;
    // No client waits longer than a minute; with zero no upstream could answer.
    if !(0.01..=60.0).contains(&seconds) {
        return Err("expected between 0.01 and 60 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn server_name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > NSID_BYTES_MAX {
        return Err(format!("expected 1 to {NSID_BYTES_MAX} bytes"));
    }
    Ok(text.to_owned())
}

fn dot_address(text: &str) -> Result<SocketAddr, String> {
    address_or_port(text, 853)
}

fn doh_address(text: &str) -> Result<SocketAddr, String> {
    address_or_port(text, 443)
}

/// An address to listen on, whose port may be left out; without an IP address it is all IPv4 addresses, as for `--listen`.
fn address_or_port(text: &str, port: u16) -> Result<SocketAddr, String> {
    let all = text.strip_prefix(':').and_then(|port| Some((Ipv4Addr::UNSPECIFIED, port.parse().ok()?).into()));
    let alone = || text.parse().ok().map(|ip: IpAddr| (ip, port).into());
    all.or_else(alone)
        .or_else(|| text.parse().ok())
        .ok_or_else(|| format!("expected IP[:PORT] or :PORT, found {text:?}"))
}

fn domain_name(text: &str) -> Result<Folded, String> {
    let name = Folded::parse(text).map_err(|error| error.to_string())?;
    if name.is_root() { Err("the root is no domain of its own".to_owned()) } else { Ok(name) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn the_zone_has_the_defaults_of_the_command_line() {
        assert_eq!(Settings::from(&parse("dns").unwrap()), Settings::default());
    }

    fn parse(line: &str) -> Result<Options, clap::Error> {
        Line::try_parse_from(line.split_whitespace()).map(|line| line.options)
    }

    #[test]
    fn upstreams_may_leave_out_the_port() {
        let options = parse("dns --upstream 192.0.2.1 --upstream [2001:db8::1]:54 --upstream 2001:db8::2").unwrap();
        let addresses: Vec<_> = options.upstreams.iter().map(|upstream| upstream.0.to_string()).collect();
        assert_eq!(addresses, ["192.0.2.1:53", "[2001:db8::1]:54", "[2001:db8::2]:53"]);
    }

    #[test]
    fn flags_of_the_predecessor_keep_their_meaning() {
        let options = parse(
            "dns --ttl 600 --recurser-timeout 2 --ndots 1 --never-recurse-to 192.0.2.1,192.0.2.2 --cache-capacity 5",
        )
        .unwrap();
        assert_eq!((options.ttl, options.ndots, options.never_recurse_to.len()), (600, 1, 2));
        assert_eq!((options.recurser_timeout, options.cache_capacity), (Duration::from_secs(2), 5));
    }

    #[test]
    fn a_private_domain_may_have_a_server_of_its_own() {
        let options = parse("dns --private-upstream corp.example=192.0.2.1,lab.example").unwrap();
        let shown: Vec<_> = options
            .private_upstreams
            .iter()
            .map(|private| format!("{} {:?}", private.domain, private.upstream.map(|upstream| upstream.0)))
            .collect();
        assert_eq!(shown, ["corp.example. Some(192.0.2.1:53)", "lab.example. None"]);
    }

    #[test]
    fn addresses_for_encrypted_queries_may_leave_out_the_port() {
        let options = parse("dns --dot 192.0.2.1 --doh 2001:db8::1 --dns-tls-certs certs").unwrap();
        assert_eq!(options.dot, Some("192.0.2.1:853".parse().unwrap()));
        assert_eq!(options.doh, Some("[2001:db8::1]:443".parse().unwrap()));
        let options = parse("dns --dot :8853 --doh [::1]:8443 --dns-tls-certs certs").unwrap();
        assert_eq!(options.dot, Some("0.0.0.0:8853".parse().unwrap()));
        assert_eq!(options.doh, Some("[::1]:8443".parse().unwrap()));
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "dns --upstream web",
            "dns --recurser-timeout 0",
            "dns --domain .",
            "dns --ttl -1",
            "dns --responses-per-second 100001",
            "dns --private-upstream 192.0.2.1",
            "dns --private-upstream corp.example=x",
            "dns --dot 127.0.0.1",
            "dns --doh 127.0.0.1",
            "dns --dot x --dns-tls-certs certs",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
