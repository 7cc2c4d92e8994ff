//! etcd's users and roles. All calls but [`EtcdClient::has_users`] need the role `root`, once users are asked for.

use std::time::Duration;

use serde::Serialize;

use crate::client::EtcdClient;
use crate::error::EtcdError;
use crate::span::Span;
use crate::transport::{ASK_LIMIT, Again};
use crate::wire::{
    Base64, Done, GrantRequest, Granted, GrantedPermission, Permission, RevokeRequest, RoleRequest, RoleResponse,
    UserRequest, UserRoleRequest, UsersResponse,
};

/// Longest wait for a change of users or roles. etcd reads all users for it: with 10,000, on a busy machine, that takes a
/// second, and several changes may be on their way.
const CHANGE_LIMIT: Duration = Duration::from_secs(20);

/// What a role may do with keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read them.
    Read,
    /// Write them.
    Write,
    /// Read and write them.
    ReadWrite,
}

impl EtcdClient {
    /// Whether etcd asks for users.
    pub async fn has_users(&self) -> Result<bool, EtcdError> {
        self.0.has_users().await
    }

    /// From now on etcd asks for users; there has to be one called `root` with the role `root`.
    pub async fn enable_users(&self) -> Result<(), EtcdError> {
        self.change("enable", &UserRequest::default(), "authentication is already enabled").await.map(drop)
    }

    /// The names of all users.
    pub async fn users(&self) -> Result<Vec<String>, EtcdError> {
        let response: UsersResponse = self.0.ask("auth/user/list", &Nothing {}, ASK_LIMIT, Again::Yes).await?;
        Ok(response.users)
    }

    /// Whether there is a user of this name.
    pub async fn has_user(&self, name: &str) -> Result<bool, EtcdError> {
        self.change("user/get", &UserRequest { name, password: None }, "user name not found").await
    }

    /// A user with this password. One that is there gets this password, and tokens of before become void.
    pub async fn put_user(&self, name: &str, password: &str) -> Result<(), EtcdError> {
        let request = UserRequest { name, password: Some(password) };
        if !self.change("user/add", &request, "user name already exists").await? {
            self.change("user/changepw", &request, "").await?;
        }
        Ok(())
    }

    /// Removes a user, whose tokens become void at once; returns whether it existed.
    pub async fn delete_user(&self, name: &str) -> Result<bool, EtcdError> {
        self.change("user/delete", &UserRequest { name, password: None }, "user name not found").await
    }

    /// Gives a user a role, which it may have already.
    pub async fn grant_role(&self, user: &str, role: &str) -> Result<(), EtcdError> {
        self.change("user/grant", &UserRoleRequest { user, role }, "").await.map(drop)
    }

    /// Makes a role without rights; returns whether there was none of this name.
    pub async fn add_role(&self, name: &str) -> Result<bool, EtcdError> {
        let request = RoleRequest { name: Some(name), role: None };
        self.change("role/add", &request, "role name already exists").await
    }

    /// What a role may do.
    pub async fn permits(&self, role: &str) -> Result<Vec<(Access, Span)>, EtcdError> {
        let request = RoleRequest { name: None, role: Some(role) };
        let response: RoleResponse = self.0.ask("auth/role/get", &request, CHANGE_LIMIT, Again::Yes).await?;
        let permit = |GrantedPermission { kind, key, range_end }| {
            let access = match kind {
                Granted::Read => Access::Read,
                Granted::Write => Access::Write,
                Granted::ReadWrite => Access::ReadWrite,
            };
            (access, Span { from: key.0, end: range_end.0 })
        };
        Ok(response.perm.into_iter().map(permit).collect())
    }

    /// Gives a role rights to keys.
    pub async fn permit(&self, role: &str, access: Access, span: &Span) -> Result<(), EtcdError> {
        let kind = match access {
            Access::Read => "READ",
            Access::Write => "WRITE",
            Access::ReadWrite => "READWRITE",
        };
        let perm = Permission { kind, key: Base64(span.from.clone()), range_end: Base64(span.end.clone()) };
        self.change("role/grant", &GrantRequest { name: role, perm }, "").await.map(drop)
    }

    /// Takes rights to keys from a role.
    pub async fn forbid(&self, role: &str, span: &Span) -> Result<(), EtcdError> {
        let request = RevokeRequest { role, key: Base64(span.from.clone()), range_end: Base64(span.end.clone()) };
        self.change("role/revoke", &request, "permission is not granted").await.map(drop)
    }

    /// Removes a role, from all users too; returns whether it existed.
    pub async fn delete_role(&self, name: &str) -> Result<bool, EtcdError> {
        self.change("role/delete", &RoleRequest { name: None, role: Some(name) }, "role name not found").await
    }

    /// Changes users or roles; `false` when etcd refuses because of `nothing_to_do`.
    async fn change(&self, path: &str, request: &impl Serialize, nothing_to_do: &str) -> Result<bool, EtcdError> {
        // Twice does no harm: what was done the first time is nothing to do the second time.
        match self.0.ask::<Done>(&format!("auth/{path}"), request, CHANGE_LIMIT, Again::Yes).await {
            Ok(Done {}) => Ok(true),
            Err(EtcdError::Refused(problem)) if !nothing_to_do.is_empty() && problem.contains(nothing_to_do) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

#[derive(Serialize)]
struct Nothing {}
