//! `agent lb haproxy`: HAProxy on this host does what the rules of a balancer say, until asked to stop.

use std::fs::{File, TryLockError};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use balancer::Metrics;
use platform::console;
use process::{Failure, Launch, ProcessOptions, StateOptions, listen_address};

use super::Which;
use super::certificates::CertificateFolder;
use super::keep::Keeper;
use super::proxy::Proxy;

/// Where the admin pages are by default: beside those of the services.
const ADMIN: &str = "127.0.0.1:8116";

/// Keep HAProxy on this host as the rules of a balancer want it, until asked to stop
///
/// Members come and go through HAProxy's socket, without a reload; rules, ports and names of certificates by a reload of a
/// configuration that HAProxy has checked. What HAProxy refuses is never loaded: the last configuration goes on, and the reason is
/// in the log and in /readyz. While the source is silent, nothing changes.
///
/// The folder has haproxy.cfg, haproxy.sock and master.sock. With --run, HAProxy is started, started again when it ends, and ended
/// with this process. Without, something else runs it: haproxy -W -S FOLDER/master.sock,mode,600 -f FOLDER/haproxy.cfg
#[derive(clap::Args)]
#[command(
    mut_args(process::hide_address_options),
    after_help = "Examples:
  agent lb haproxy --run --service edge/lb
  agent lb haproxy --run --source file:cluster.yml --bind 127.0.0.1 --folder /tmp/lb
  agent lb export --service edge/lb        what it would write"
)]
pub(crate) struct Haproxy {
    /// Start HAProxy, and keep it running as long as this process
    #[arg(long, env = "BERTH_LB_RUN")]
    run: bool,

    /// Folder for its configuration and its sockets [default: haproxy below the state directory of this user]
    #[arg(long, value_name = "DIR", env = "BERTH_LB_FOLDER")]
    folder: Option<PathBuf>,

    /// The program
    #[arg(long = "haproxy", value_name = "PATH", env = "BERTH_HAPROXY", default_value = "haproxy")]
    program: PathBuf,

    /// Socket of its master, if something else runs it [default: master.sock in the folder]
    #[arg(long, value_name = "PATH", env = "BERTH_LB_MASTER", conflicts_with = "run")]
    master: Option<PathBuf>,

    /// Folder with NAME.pem, or NAME/fullchain.pem and NAME/privkey.pem, for each certificate of the rules; looked at every 2 s
    #[arg(long, value_name = "DIR", env = "BERTH_LB_CERTS")]
    certs: Option<PathBuf>,

    /// Listen on this address alone
    #[arg(long, value_name = "ADDRESS", env = "BERTH_LB_BIND")]
    bind: Option<IpAddr>,

    /// Loopback addresses of the admin pages [default: 127.0.0.1:8116]
    #[arg(long, value_name = "ADDRESS", env = "BERTH_ADMIN", value_delimiter = ',', value_parser = listen_address)]
    admin: Vec<SocketAddr>,

    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    pub(crate) process: ProcessOptions,
}

impl Haproxy {
    /// Follows the source and has HAProxy follow it.
    ///
    /// # Errors
    ///
    /// Fails if the folder cannot be used, or another process uses it.
    pub(crate) async fn serve(self, mut launch: Launch) -> Result<(), Failure> {
        if console::OF_WINDOWS {
            return Err("HAProxy does not run on Windows: use Traefik, see `agent lb traefik-static --help`".into());
        }
        let folder = match self.folder {
            Some(folder) => std::path::absolute(folder)?,
            None => platform::file::user_state_folder().ok_or("--folder: where?")?.join("haproxy"),
        };
        let unusable = |error: &dyn std::fmt::Display| format!("--folder {}: {error}", folder.display());
        platform::file::create_private_folder(&folder).map_err(|error| unusable(&error))?;
        launch.hold(lock(&folder)?);
        let certificates = match self.certs {
            Some(from) => {
                let to = folder.join("certificates");
                platform::file::create_private_folder(&to).map_err(|error| unusable(&error))?;
                Some(CertificateFolder::new(from, to))
            }
            None => None,
        };
        let metrics = Metrics::register(&mut launch.registry);
        let asked = !self.admin.is_empty();
        let admin = if asked { self.admin } else { vec![ADMIN.parse()?] };
        let (snapshots, reload) = launch.follow(self.which.source.clone(), &StateOptions { state_dir: None })?;
        launch.admin(&admin, asked, Some(reload))?;
        let proxy = Proxy::new(self.program, &folder, self.master, self.run, metrics.clone());
        let readiness = launch.readiness.clone();
        let mut keeper =
            Keeper::new(&folder, self.which, self.bind, certificates, proxy, snapshots, readiness, metrics)?;
        let stop = launch.stop.clone();
        launch.spawn("HAProxy", async move {
            keeper.run(&stop).await;
            Ok(())
        });
        launch.run().await
    }
}

/// Keeps all others from this folder until it is dropped.
fn lock(folder: &Path) -> Result<File, Failure> {
    let path = folder.join("lock");
    let wrong = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut lock = platform::file::append_private(&path).map_err(wrong)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let _ = File::open(&path).and_then(|mut file| file.read_to_string(&mut pid));
            return Err(format!("process {1} uses {0} already", folder.display(), pid.trim()).into());
        }
        Err(TryLockError::Error(error)) => return Err(wrong(error).into()),
    }
    lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id())).map_err(wrong)?;
    Ok(lock)
}
