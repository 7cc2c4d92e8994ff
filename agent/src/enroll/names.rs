//! What hosts and invitations are called in etcd, and what their users may do there.

use std::pin::pin;

use etcd::{Access, EtcdClient, EtcdError, LEDGER, Span};
use futures_util::{StreamExt as _, stream};
use process::Failure;

use super::intent::IntentValue;
use super::seal::password;

/// Where invitations are: outside of every cluster's prefix, since each host reads that.
pub(crate) const INVITATIONS: &str = "/berth/join/v1/";

/// What users and roles of invitations are called by, and those of hosts.
const JOINERS: &str = "berth.join.";
const HOSTS: &str = "berth.host.";

/// Longest name of a host, that of a DNS name (RFC 1035 section 2.3.4).
pub(crate) const HOST_MAX: usize = 253;

/// Longest reason for the state of a host, in bytes: it stands in a line about the host, and in each refusal.
const REASON_MAX: usize = 500;

/// A reason for the state of a host.
pub(crate) fn reason(text: &str) -> Result<String, String> {
    if text.len() <= REASON_MAX { Ok(text.to_owned()) } else { Err(format!("expected at most {REASON_MAX} bytes")) }
}

/// A name of a host on a command line. Names that a shell or a file of settings would take for something else are none.
pub(crate) fn host_name(text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let fits = (1..=HOST_MAX).contains(&text.len()) && text.bytes().all(plain) && !text.starts_with(['-', '.']);
    if fits { Ok(text.to_owned()) } else { Err("expected a name of letters, digits, - . and _".to_owned()) }
}

/// The user and role of a host.
pub(crate) fn user_of_host(host: &str) -> String {
    format!("{HOSTS}{host}")
}

/// The user and role of an invitation.
pub(crate) fn user_of_invitation(id: &str) -> String {
    format!("{JOINERS}{id}")
}

/// The key of an invitation.
pub(crate) fn invitation_key(id: &str) -> String {
    format!("{INVITATIONS}{id}")
}

/// The key of a host below the prefix.
pub(crate) fn host_key(prefix: &str, host: &str, rest: &str) -> String {
    format!("{prefix}hosts/{host}/{rest}")
}

/// The ranges that a host reads: everything under `prefix` but the ledger, whose requests have the environments of containers.
fn read_spans(prefix: &str) -> [Span; 2] {
    let (all, ledger) = (Span::of_prefix(prefix.as_bytes()), Span::of_prefix(format!("{prefix}{LEDGER}").as_bytes()));
    [Span { from: all.from, end: ledger.from }, Span { from: ledger.end, end: all.end }]
}

/// The ranges that a host may write besides reading.
pub(crate) fn own_spans(prefix: &str, host: &str) -> [Span; 4] {
    let below = |list: &str| Span::of_prefix(format!("{prefix}{list}/{host}/").as_bytes());
    let claim = Span::of_key(format!("{prefix}claims/host/{host}").as_bytes());
    [below("hosts"), below("votes"), below("health"), claim]
}

/// A user that etcd is to have, with a role of its own.
pub(crate) struct NewUser {
    /// Its name, and that of its role.
    pub(crate) name: String,
    pub(crate) password: String,
    /// What it may do.
    pub(crate) permits: Vec<(Access, Span)>,
}

/// Most changes of users and roles that are on their way at once. etcd makes one after the other, but writes those to its
/// disk together that have come together.
const CHANGES_MAX: usize = 8;

/// Makes users; what is there already stays, but a role permits nothing else afterwards and a user has this password.
///
/// With almost each change etcd reads all users again, and all that their roles permit. So roles come first, while
/// no user has them; then users, which cost little without a role; and those users get their roles last that may do most.
pub(crate) async fn add_users(
    client: &EtcdClient,
    mut users: Vec<NewUser>,
    progress: impl Fn(&str, usize, usize),
) -> Result<(), EtcdError> {
    users.sort_by_key(|user| user.permits.len());
    each(&users, async |user| make_role(client, user).await, |count| progress("roles", count, users.len())).await?;
    let put = async |user: &NewUser| client.put_user(&user.name, &user.password).await;
    each(&users, put, |count| progress("users", count, users.len())).await?;
    let grant = async |user: &NewUser| client.grant_role(&user.name, &user.name).await;
    each(&users, grant, |count| progress("users with a role", count, users.len())).await?;
    Ok(())
}

/// Does something with all, some at once, and says how many are done; the first failure ends it.
pub(crate) async fn each<T, R, E>(
    all: &[T],
    act: impl AsyncFn(&T) -> Result<R, E>,
    progress: impl Fn(usize),
) -> Result<Vec<R>, E> {
    let act = &act;
    let mut outcomes = pin!(stream::iter(all).map(|one| act(one)).buffered(CHANGES_MAX));
    let mut results = Vec::with_capacity(all.len());
    while let Some(outcome) = outcomes.next().await {
        results.push(outcome?);
        progress(results.len());
    }
    Ok(results)
}

/// Makes the role of a user.
async fn make_role(client: &EtcdClient, NewUser { name, permits, .. }: &NewUser) -> Result<(), EtcdError> {
    let there = if client.add_role(name).await? { Vec::new() } else { client.permits(name).await? };
    for (access, span) in permits.iter().filter(|permit| !there.contains(permit)) {
        client.permit(name, *access, span).await?;
    }
    // Of a host that was a scheduler before, say.
    for (_, span) in there.iter().filter(|(_, span)| permits.iter().all(|(_, permitted)| permitted != span)) {
        client.forbid(name, span).await?;
    }
    Ok(())
}

/// The user of a host, with this password.
pub(crate) fn new_host(prefix: &str, host: &str, scheduler: bool, password: &str) -> NewUser {
    let mut permits = read_spans(prefix).map(|span| (Access::Read, span)).to_vec();
    // It may read them already, and etcd goes through all that users may do with each change of one.
    permits.extend(own_spans(prefix, host).map(|span| (Access::Write, span)));
    if scheduler {
        let ledger = Span::of_prefix(format!("{prefix}{LEDGER}").as_bytes());
        permits.push((Access::ReadWrite, ledger));
        permits.push((Access::Write, Span::of_prefix(format!("{prefix}evicted/").as_bytes())));
    }
    NewUser { name: user_of_host(host), password: password.to_owned(), permits }
}

/// The user of an invitation, which may read it and use it up.
pub(crate) fn new_joiner(id: &str, password: &str) -> NewUser {
    let permits = vec![(Access::ReadWrite, Span::of_key(invitation_key(id).as_bytes()))];
    NewUser { name: user_of_invitation(id), password: password.to_owned(), permits }
}

/// The invitations that have a user; none where this user may not know of users.
pub(crate) async fn invitations_with_user(client: &EtcdClient) -> Result<Vec<String>, EtcdError> {
    let users = match client.users().await {
        Err(EtcdError::Refused(_)) => Vec::new(),
        users => users?,
    };
    Ok(users.iter().filter_map(|user| user.strip_prefix(JOINERS)).map(str::to_owned).collect())
}

/// Removes the user, role and key of an invitation; what is not there is no error. Returns whether something was.
pub(crate) async fn revoke(client: &EtcdClient, id: &str, users: bool) -> Result<bool, EtcdError> {
    let name = user_of_invitation(id);
    let mut there = client.delete(invitation_key(id).as_bytes()).await?;
    if users {
        there |= client.delete_user(&name).await?;
        there |= client.delete_role(&name).await?;
    }
    Ok(there)
}

/// Voids the password of the host that an invitation was for, unless the host publishes itself: the password is in the invitation,
/// and etcd's history still returns that. Returns the host.
///
/// A host that joined and is off looks like one that never joined; it has to be invited again. Invitations that expire after `moment`,
/// in seconds since 1970, are skipped: one of them may not be complete yet.
pub(crate) async fn void(
    client: &EtcdClient,
    intents: &[(String, IntentValue)],
    id: &str,
    moment: i64,
) -> Result<Option<String>, Failure> {
    for (host, said) in intents {
        let until = said.invited("until").and_then(live::moment::read);
        if said.invited("id") != Some(id) || said.rotated().is_some() || until.is_none_or(|until| until > moment) {
            continue;
        }
        let key = host_key(&client.options().prefix, host, "host");
        let user = user_of_host(host);
        if client.get(key.as_bytes()).await?.0.is_some() || !client.has_user(&user).await? {
            continue;
        }
        client.put_user(&user, &password()?).await?;
        return Ok(Some(host.clone()));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_hosts_are_plain() {
        for (text, fits) in
            [("win-5", true), ("a.b_c", true), ("", false), ("-a", false), (".", false), ("a b", false), ("a/b", false)]
        {
            assert_eq!(host_name(text).is_ok(), fits, "{text}");
        }
        assert!(host_name(&"a".repeat(254)).is_err());
    }
}
