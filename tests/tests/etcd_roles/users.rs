//! Users of etcd with the roles that the operator's commands give them.

use std::fs;
use std::path::PathBuf;

use etcd::{Access, EtcdClient, EtcdError, LEDGER, PREFIX, Span};
use tests::etcd_with_users::{EtcdWithUsers, OPERATOR, ROOT};
use tests::publication::runtime;
use tokio::runtime::Runtime;

/// Who writes what: users of [`Users`], apart from `root`, which may write everything and is tried where the page names it.
pub(crate) const A: &str = "a";
pub(crate) const B: &str = "b";
pub(crate) const SCHEDULER: &str = "s";
pub(crate) const HOLDER: &str = "holder";
pub(crate) const READER: &str = "reader";

/// The users that the commands of the operator make, with a password that is known; and a reader as docs/etcd.md says.
pub(crate) struct Users<'e> {
    etcd: &'e EtcdWithUsers,
    pub(crate) runtime: Runtime,
    /// The invitation of host a.
    id: String,
    /// The password of all but the operator and root.
    pub(crate) password_file: PathBuf,
}

const PASSWORD: &str = "s3cret";

impl<'e> Users<'e> {
    pub(crate) fn invited(etcd: &'e EtcdWithUsers) -> Self {
        let invite = |host: &str, role: &str| {
            let told = etcd.command(&["invite", host, "--role", role]);
            assert_eq!(told.code, Some(0), "{}", told.errors);
            told.output.split_once("(invitation ").unwrap().1.split_once(')').unwrap().0.to_owned()
        };
        let id = invite("a", "host");
        invite("b", "host");
        invite("s", "host,scheduler");
        let password_file = etcd.folder().join("password");
        fs::write(&password_file, PASSWORD).unwrap();
        let users = Self { etcd, runtime: runtime(), id, password_file };
        // Their roles stay as they were made: this is the host's password and the holder's only.
        for name in [A, B, SCHEDULER, HOLDER, READER] {
            users.set_password(&users.name(name));
        }
        users.read_all_but_the_ledger();
        users
    }

    /// What etcd calls a user.
    fn name(&self, user: &str) -> String {
        match user {
            A | B | SCHEDULER => user_of(user),
            HOLDER => format!("berth.join.{}", self.id),
            other => other.to_owned(),
        }
    }

    pub(crate) fn client(&self, user: &str) -> EtcdClient {
        let password = if [OPERATOR, ROOT].contains(&user) { self.etcd.password(user) } else { PASSWORD.to_owned() };
        self.etcd.client(&self.name(user), &password)
    }

    pub(crate) fn set_password(&self, name: &str) {
        self.runtime.block_on(self.client(ROOT).put_user(name, PASSWORD)).unwrap();
    }

    /// Gives a user a role that permits this below the prefix.
    pub(crate) fn grant(&self, role: &str, user: &str, permits: &[(Access, &str)]) {
        let root = self.client(ROOT);
        self.runtime.block_on(async {
            root.add_role(role).await.unwrap();
            for (access, below) in permits {
                root.permit(role, *access, &Span::of_prefix(format!("{PREFIX}{below}").as_bytes())).await.unwrap();
            }
            root.grant_role(user, role).await.unwrap();
        });
    }

    /// Gives [`READER`] the role of the page.
    fn read_all_but_the_ledger(&self) {
        let root = self.client(ROOT);
        let (all, ledger) =
            (Span::of_prefix(PREFIX.as_bytes()), Span::of_prefix(format!("{PREFIX}{LEDGER}").as_bytes()));
        let before = Span { from: all.from, end: ledger.from };
        let behind = Span { from: ledger.end, end: all.end };
        self.runtime.block_on(async {
            root.add_role("berth-reader").await.unwrap();
            for span in [before, behind] {
                root.permit("berth-reader", Access::Read, &span).await.unwrap();
            }
            root.grant_role(READER, "berth-reader").await.unwrap();
        });
    }

    pub(crate) fn key(&self, path: &str) -> String {
        if path.starts_with('/') { path.replace("ID", &self.id) } else { format!("{PREFIX}{path}") }
    }

    /// Whether the user may write this, which it does then.
    pub(crate) fn put(&self, user: &str, path: &str, value: &str) -> bool {
        let put = self.runtime.block_on(self.client(user).put(self.key(path).as_bytes(), value.as_bytes(), 0));
        match put {
            Ok(_) => true,
            Err(EtcdError::Refused(_)) => false,
            Err(other) => panic!("{user} {path}: {other}"),
        }
    }
}

/// The user of a host.
pub(crate) fn user_of(host: &str) -> String {
    format!("berth.host.{host}")
}
