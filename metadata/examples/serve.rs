//! Serves a file, for trying things out.

use std::path::PathBuf;
use std::sync::Arc;

use metadata::{Options, Server};

#[derive(clap::Parser)]
struct Arguments {
    file: Option<PathBuf>,
    #[arg(long, default_value = "127.0.0.1:8250")]
    listen: std::net::SocketAddr,
    #[command(flatten)]
    options: Options,
}

#[tokio::main]
async fn main() {
    let arguments = <Arguments as clap::Parser>::parse();
    let snapshots = Arc::new(source::Store::new(model::Snapshot::default()));
    let mut registry = prometheus_client::registry::Registry::default();
    let server = Server::new(&arguments.options, snapshots.clone(), &mut registry).unwrap();
    let listener = platform::socket::tcp_listener(arguments.listen).unwrap();
    let stop = tokio_util::sync::CancellationToken::new();
    if let Some(file) = arguments.file {
        let snapshots = snapshots.clone();
        std::thread::spawn(move || {
            let mut last = Vec::new();
            loop {
                let octets = std::fs::read(&file).unwrap_or_default();
                if octets != last {
                    last = octets.clone();
                    match source::cluster_file::read(&file, octets) {
                        Ok((reading, _)) => {
                            let before = snapshots.load_full();
                            snapshots.publish(Arc::new(reading.snapshot.succeeding(&before)));
                        }
                        Err(error) => println!("{error}"),
                    }
                }
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
        });
    }
    server.run(listener, stop).await;
}
