//! The status of each member of etcd, for diagnosis.

use std::time::SystemTime;

use crate::client::EtcdClient;
use crate::error::EtcdError;
use crate::options::Endpoint;
use crate::wire::{MembersResponse, StatusResponse};

/// One of the members that are asked.
#[derive(Clone, Debug)]
pub struct Member {
    /// Where it was asked.
    pub endpoint: Endpoint,
    /// What it says, or why it says nothing.
    pub status: Result<MemberStatus, EtcdError>,
}

/// What a member says.
#[derive(Clone, Debug)]
pub struct MemberStatus {
    /// Its number in the cluster.
    pub id: u64,
    /// Which cluster it belongs to: all members have to say the same.
    pub cluster: u64,
    /// The version of etcd.
    pub version: String,
    /// Whether it leads the others.
    pub leads: bool,
    /// Whether it knows the leader; without one nothing can be written.
    pub knows_leader: bool,
    /// How many changes it knows of.
    pub revision: i64,
    /// Bytes of its database.
    pub size: i64,
    /// What it complains of, such as a full database.
    pub alarms: Vec<String>,
    /// The names and client addresses of all members that it knows.
    pub members: Vec<(String, Vec<String>)>,
    /// How far its clock is ahead of ours (negative: behind), in seconds; a second more or less means nothing.
    pub clock_ahead: Option<i64>,
    /// Whether it can read what is under our prefix, with the help of the leader.
    pub reads: Result<i64, EtcdError>,
}

/// Asks all members, at the same time.
pub async fn members(client: &EtcdClient) -> Vec<Member> {
    let asking = client.endpoints().iter().enumerate().map(|(number, endpoint)| async move {
        Member { endpoint: endpoint.clone(), status: status(client, number).await }
    });
    futures_util::future::join_all(asking).await
}

async fn status(client: &EtcdClient, number: usize) -> Result<MemberStatus, EtcdError> {
    let (status, date): (StatusResponse, _) = client.0.ask_member(number, "maintenance/status").await?;
    let now = SystemTime::now();
    let clock_ahead = date.map(|date| match date.duration_since(now) {
        Ok(ahead) => i64::try_from(ahead.as_secs()).unwrap_or(i64::MAX),
        Err(behind) => -i64::try_from(behind.duration().as_secs()).unwrap_or(i64::MAX),
    });
    // A user who may read keys may not be allowed to list members.
    let known: Result<(MembersResponse, _), _> = client.0.ask_member(number, "cluster/member/list").await;
    let known = known.map(|(known, _)| known.members).unwrap_or_default();
    Ok(MemberStatus {
        id: status.header.member_id.0,
        cluster: status.header.cluster_id.0,
        version: status.version,
        leads: status.leader == status.header.member_id,
        knows_leader: status.leader.0 != 0,
        revision: status.header.revision.0,
        size: status.db_size.0,
        alarms: status.errors,
        members: known.into_iter().map(|member| (member.name, member.client_urls)).collect(),
        clock_ahead,
        reads: client.probe(number).await.map(|at| at.revision),
    })
}
