//! The network between hosts: each host has a subnet of the cluster's range, and a route to the subnet of each other host.
//!
//! Which host has which subnet stands in etcd, without a lease: routes follow claims, so a host whose agent or etcd is away
//! keeps them. What has to be done on this host is a pure function of the claims and of what is there ([`plan::plan`]); only
//! what carries our mark is ever changed.

pub mod choice;
pub mod claim;
pub mod config;
mod fault;
pub mod fights;
pub mod firewall;
pub mod firewall_program;
pub mod guard;
pub mod host;
pub mod ledger;
pub mod plan;
pub mod registry;
pub mod routes;
pub mod step;
pub mod verdict;
