//! How operators' commands reach etcd, and as whom.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ArgGroup;
use etcd::{Endpoint, EtcdArgs, EtcdClient, EtcdOptions};
use process::Failure;

use super::folder::{self, Rights};
use super::outcome::finish;

/// Which etcd, and as whom.
#[derive(clap::Args)]
#[command(group = ArgGroup::new("place").required(true).multiple(true).args(["cluster", "members"]))]
pub(crate) struct Operator {
    /// The folder that `agent cluster init` made: says where etcd is, and has the certificates and passwords
    #[arg(long, value_name = "DIR", env = "BERTH_CLUSTER")]
    cluster: Option<PathBuf>,

    /// Members of etcd
    #[arg(long = "etcd", value_name = "URL", env = "BERTH_ETCD", value_delimiter = ',')]
    members: Vec<Endpoint>,

    #[command(flatten, next_help_heading = "etcd")]
    etcd: EtcdArgs,
}

impl Operator {
    /// The folder of the cluster, where one was given.
    pub(crate) fn cluster(&self) -> Option<&Path> {
        self.cluster.as_deref()
    }

    fn options(&self, rights: Rights) -> Result<EtcdOptions, Failure> {
        let mut options = self.etcd.with_members(self.members.clone());
        if let Some(folder) = &self.cluster {
            folder::complete(folder, rights, &mut options)?;
        }
        Ok(options)
    }

    /// Does `work` with a client of etcd, and prints what it gives; the exit code is 1 when it fails.
    pub(crate) fn run<F>(&self, rights: Rights, work: impl FnOnce(EtcdClient) -> F) -> ExitCode
    where
        F: Future<Output = Result<String, Failure>>,
    {
        let done = || -> Result<String, Failure> {
            let options = self.options(rights)?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async { work(EtcdClient::new(options)?).await })
        };
        finish(done())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        operator: Operator,
    }

    #[test]
    fn one_of_folder_and_members_is_needed_and_both_are_named() {
        let parse = |words: &[&str]| Command::try_parse_from([&["agent"], words].concat());
        for words in
            [&["--cluster", "c"][..], &["--etcd", "http://127.0.0.1:1"], &["--cluster=c", "--etcd=http://[::1]:1"]]
        {
            let command = parse(words).map_err(|error| error.to_string()).unwrap();
            assert_eq!(command.operator.cluster().is_some(), words[0].contains("cluster"));
        }
        let refused = parse(&[]).err().unwrap().to_string();
        for option in ["--cluster <DIR>", "--etcd <URL>"] {
            assert!(refused.contains(option), "{refused}");
        }
        assert!(parse(&["--etcd-user", "root"]).is_err(), "that is not where etcd is");
    }
}
