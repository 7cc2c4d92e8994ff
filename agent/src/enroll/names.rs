//! What hosts and invitations are called in etcd, and what their users may do there.

use etcd::{Access, EtcdClient, EtcdError, Span};

/// Where invitations are: outside of every cluster's prefix, since each host reads all of that.
pub(crate) const INVITATIONS: &str = "/berth/join/v1/";

/// What users and roles of invitations are called by, and those of hosts.
const JOINERS: &str = "berth.join.";
const HOSTS: &str = "berth.host.";

/// Longest name of a host, that of a DNS name (RFC 1035 section 2.3.4).
pub(crate) const HOST_MAX: usize = 253;

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

/// The ranges that a host may write besides reading everything under `prefix`.
pub(crate) fn own_spans(prefix: &str, host: &str) -> [Span; 4] {
    let below = |list: &str| Span::of_prefix(format!("{prefix}{list}/{host}/").as_bytes());
    let claim = Span::of_key(format!("{prefix}claims/host/{host}").as_bytes());
    [below("hosts"), below("votes"), below("health"), claim]
}

/// Makes a user with a role of its own, which permits this; what is there stays.
pub(crate) async fn add_user(
    client: &EtcdClient,
    name: &str,
    password: &str,
    permits: &[(Access, Span)],
) -> Result<(), EtcdError> {
    client.add_role(name).await?;
    for (access, span) in permits {
        client.permit(name, *access, span).await?;
    }
    client.put_user(name, password).await?;
    client.grant_role(name, name).await
}

/// Makes the role of a host, and its user with this password.
pub(crate) async fn admit(
    client: &EtcdClient,
    host: &str,
    scheduler: bool,
    password: &str,
) -> Result<String, EtcdError> {
    let prefix = client.options().prefix.clone();
    let name = user_of_host(host);
    let mut permits = vec![(Access::Read, Span::of_prefix(prefix.as_bytes()))];
    permits.extend(own_spans(&prefix, host).map(|span| (Access::ReadWrite, span)));
    if scheduler {
        let ledger = Span::of_prefix(format!("{prefix}{}", live::etcd::keys::LEDGER).as_bytes());
        permits.push((Access::ReadWrite, ledger));
    }
    add_user(client, &name, password, &permits).await?;
    Ok(name)
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
