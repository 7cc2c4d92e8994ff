//! How hosts come into a cluster and leave it for good, and what operators say of them: docs/hosts.md.

mod cluster;
mod cordon;
mod drain;
mod folder;
mod host_list;
mod hosts;
mod intent;
mod invite;
mod join;
mod label;
mod names;
mod operator;
mod outcome;
mod remove;
mod rotate;
mod script;
mod seal;
mod token;

pub(crate) use cluster::Cluster;
pub(crate) use cordon::{Cordon, Uncordon};
pub(crate) use drain::Drain;
pub(crate) use folder::Rights;
pub(crate) use hosts::{Hosts, Invites};
pub(crate) use intent::all as intents;
pub(crate) use invite::Invite;
pub(crate) use join::Join;
pub(crate) use label::Label;
pub(crate) use names::{host_name, invitation_key, invitations_with_user, revoke, void};
pub(crate) use operator::Operator;
pub(crate) use outcome::{finish, named, now, progress, seconds, written};
pub(crate) use remove::Remove;
pub(crate) use rotate::{HostExchange, Rotate, on_the_way};
