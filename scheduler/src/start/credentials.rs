//! Credentials for registries of images: read in Docker's forms, handed to engines, shown and stored nowhere.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::{Deserialize, Serialize};

use crate::start::registry::Registry;

/// Most registries in one request: a unit has no more images.
const REGISTRIES_MAX: usize = crate::place::request::limits::MEMBERS_MAX;

/// With padding, which engines insist on, and read without it too.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// User name of the credential helpers' protocol that says that the secret is an identity token.
const TOKEN_USER: &str = "<token>";

/// Credentials for one registry.
#[derive(Clone, Default, PartialEq, Eq, Hash, Serialize)]
pub(crate) struct Credentials {
    #[serde(skip_serializing_if = "String::is_empty")]
    username: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    password: String,
    #[serde(rename = "identitytoken", skip_serializing_if = "String::is_empty")]
    identity_token: String,
    #[serde(rename = "registrytoken", skip_serializing_if = "String::is_empty")]
    registry_token: String,
}

impl Credentials {
    /// What a credential helper answered; `None` when that is nothing.
    pub(crate) fn of_helper(username: String, secret: String) -> Option<Self> {
        let credentials = if username == TOKEN_USER {
            Self { identity_token: secret, ..Self::default() }
        } else {
            Self { username, password: secret, ..Self::default() }
        };
        credentials.if_any()
    }

    fn if_any(self) -> Option<Self> {
        (self != Self::default()).then_some(self)
    }

    /// The header `X-Registry-Auth` of the Docker Engine's API.
    pub(crate) fn header(&self) -> String {
        encoded(self)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

/// An entry of `auths` in Docker's configuration, or of the header `X-Registry-Config` of its API.
#[derive(Deserialize)]
pub(crate) struct AuthEntry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

impl AuthEntry {
    /// The credentials in it, when there are some.
    ///
    /// # Errors
    ///
    /// What its `auth` should have been; not what it is.
    pub(crate) fn credentials(self) -> Result<Option<Credentials>, &'static str> {
        let mut credentials = Credentials {
            username: self.username.unwrap_or_default(),
            password: self.password.unwrap_or_default(),
            identity_token: self.identitytoken.unwrap_or_default(),
            registry_token: self.registrytoken.unwrap_or_default(),
        };
        if let Some(auth) = self.auth.filter(|auth| !auth.is_empty()) {
            let text = decoded(&auth).and_then(|bytes| String::from_utf8(bytes).ok());
            let (username, password) =
                text.as_deref().and_then(|text| text.split_once(':')).ok_or("auth is not USER:PASSWORD in base64")?;
            // Old files fill up with zeros.
            (credentials.username, credentials.password) =
                (username.to_owned(), password.trim_end_matches('\0').to_owned());
        }
        Ok(credentials.if_any())
    }
}

/// The credentials for a registry among entries by its name or address; the name itself goes first.
///
/// # Errors
///
/// Which entry is wrong, without what is in it.
pub(crate) fn find(
    mut entries: BTreeMap<String, AuthEntry>,
    registry: &Registry,
) -> Result<Option<Credentials>, String> {
    let named = || entries.keys().find(|key| Registry::of_key(key) == *registry).cloned();
    let key = if entries.contains_key(registry.name()) { Some(registry.name().to_owned()) } else { named() };
    let Some((key, entry)) = key.and_then(|key| entries.remove_entry(&key)) else { return Ok(None) };
    entry.credentials().map_err(|error| format!("{key}: {error}"))
}

/// The header with which a request brings credentials of its own: Docker's for several registries.
pub(crate) const REQUEST_HEADER: &str = "X-Registry-Config";

/// Credentials that came with a request, for as long as it is worked on.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestCredentials(Vec<(Registry, Credentials)>);

impl RequestCredentials {
    /// Credentials for the registries of these images, as `get` has them.
    pub(crate) fn new(credentials: Vec<(Registry, Credentials)>) -> Self {
        Self(credentials)
    }

    /// Reads the header: base64 of a JSON map from registries to their credentials.
    ///
    /// # Errors
    ///
    /// Fails if it is no such map; the error does not quote it.
    pub(crate) fn parse(header: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(header).ok().and_then(decoded).ok_or("no base64")?;
        // Of serde's error only the place: its words may quote what was found.
        let entries: BTreeMap<String, AuthEntry> = serde_json::from_slice(&text)
            .map_err(|error| format!("no map from registries to credentials (column {})", error.column()))?;
        if entries.len() > REGISTRIES_MAX {
            return Err(format!("more than {REGISTRIES_MAX} registries"));
        }
        let mut found = Vec::new();
        for (key, entry) in entries {
            let credentials = entry.credentials().map_err(|error| format!("{}: {error}", key.escape_debug()))?;
            let credentials = credentials.ok_or_else(|| format!("{}: no credentials", key.escape_debug()))?;
            found.push((Registry::of_key(&key), credentials));
        }
        Ok(Self(found))
    }

    pub(crate) fn header(&self) -> String {
        let map: BTreeMap<&str, &Credentials> =
            self.0.iter().map(|(registry, credentials)| (registry.name(), credentials)).collect();
        encoded(&map)
    }

    /// The credentials for a registry.
    pub(crate) fn get(&self, registry: &Registry) -> Option<&Credentials> {
        self.0.iter().find(|(own, _)| own == registry).map(|(_, credentials)| credentials)
    }
}

fn encoded(value: &impl Serialize) -> String {
    // Text in a map or a struct is always JSON.
    BASE64.encode(serde_json::to_vec(value).unwrap_or_default())
}

/// Both alphabets are in use, and engines read only this one.
fn decoded(text: &str) -> Option<Vec<u8>> {
    BASE64.decode(text.trim().replace('+', "-").replace('/', "_")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(json: &str) -> BTreeMap<String, AuthEntry> {
        serde_json::from_str(json).unwrap()
    }

    fn standard(text: &str) -> String {
        base64::engine::general_purpose::STANDARD.encode(text)
    }

    fn of_header(header: &str) -> serde_json::Value {
        serde_json::from_slice(&base64::engine::general_purpose::URL_SAFE.decode(header).unwrap()).unwrap()
    }

    #[test]
    fn entries_of_dockers_configuration_are_read() {
        let auth = standard("me:pa:ss~~?\0");
        let json = format!(
            r#"{{"registry:5000": {{"auth": "{auth}", "email": "x"}}, "https://index.docker.io/v1/": {{"auth": "", "identitytoken": "t"}},
                "https://old.example.org/v1/": {{"username": "a", "password": "b"}}, "empty.example.org": {{}}, "bad.example.org": {{"auth": "%"}}}}"#
        );
        let find = |image: &str| find(entries(&json), &Registry::of_image(image));
        let header = |image: &str| find(image).unwrap().map(|found| of_header(&found.header()));
        assert_eq!(header("registry:5000/web"), Some(serde_json::json!({"username": "me", "password": "pa:ss~~?"})));
        assert_eq!(header("web"), Some(serde_json::json!({"identitytoken": "t"})));
        assert_eq!(header("old.example.org/web"), Some(serde_json::json!({"username": "a", "password": "b"})));
        assert_eq!((header("empty.example.org/web"), header("other.example.org/web")), (None, None));
        let error = find("bad.example.org/web").unwrap_err();
        assert!(error.contains("bad.example.org: auth is not") && !error.contains('%'), "{error}");
    }

    #[test]
    fn engines_read_what_they_are_handed_whatever_the_password() {
        for password in ["~~~~", "????", "ÿÿÿ", "a"] {
            let credentials = Credentials::of_helper("me".into(), password.into()).unwrap();
            assert_eq!(of_header(&credentials.header())["password"], password);
        }
        let token = Credentials::of_helper("<token>".into(), "t".into()).unwrap();
        assert_eq!(of_header(&token.header()), serde_json::json!({"identitytoken": "t"}));
        assert!(Credentials::of_helper(String::new(), String::new()).is_none());
    }

    #[test]
    fn requests_bring_credentials_by_registry() {
        let registry = Registry::of_image("registry:5000/web");
        let credentials = Credentials::of_helper("me".into(), "secret?~".into()).unwrap();
        let sent = RequestCredentials::new(vec![(registry.clone(), credentials.clone())]);
        let read = RequestCredentials::parse(sent.header().as_bytes()).unwrap();
        assert_eq!(read.get(&registry), Some(&credentials));
        assert_eq!(read.get(&Registry::of_image("web")), None);
        for (header, part) in [
            ("%".to_owned(), "no base64"),
            (standard("[]"), "no map"),
            (standard(r#"{"a.b": "secret"}"#), "no map"),
            (standard(r#"{"a.b": {}}"#), "a.b: no credentials"),
            (standard(r#"{"a.b": {"auth": "secret"}}"#), "a.b: auth is not"),
        ] {
            let error = RequestCredentials::parse(header.as_bytes()).unwrap_err();
            assert!(error.contains(part) && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn nothing_secret_is_shown() {
        let credentials = Credentials::of_helper("me".into(), "secret".into()).unwrap();
        let request = RequestCredentials::new(vec![(Registry::of_image("web"), credentials.clone())]);
        let shown = format!("{credentials:?} {request:?}");
        assert!(!shown.contains("secret") && !shown.contains("me"), "{shown}");
    }
}
