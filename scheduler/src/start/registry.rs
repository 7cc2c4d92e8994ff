//! The registry of an image, under the name that Docker's configuration has for it.
//!
//! `web`, `shop/web:1` and `docker.io/shop/web` are images of Docker's hub, whose old address is its name to this day.

use std::fmt;

/// What Docker's configuration calls the hub.
const HUB: &str = "https://index.docker.io/v1/";

/// Host names of the hub.
const HUB_HOSTS: [&str; 2] = ["docker.io", "index.docker.io"];

/// A registry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Registry(String);

impl Registry {
    /// The registry of an image: what stands before the first slash, when that can be a host.
    pub(crate) fn of_image(image: &str) -> Self {
        match image.split_once('/') {
            // A folder of the hub has neither dot, colon nor capital letter.
            Some((host, _))
                if host.contains(['.', ':']) || host == "localhost" || host.chars().any(char::is_uppercase) =>
            {
                Self::of_host(host)
            }
            _ => Self(HUB.to_owned()),
        }
    }

    /// The registry that a key of Docker's configuration means: a name, or an address.
    pub(crate) fn of_key(key: &str) -> Self {
        let address = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
        Self::of_host(address.split('/').next().unwrap_or_default())
    }

    fn of_host(host: &str) -> Self {
        Self(if HUB_HOSTS.contains(&host) { HUB } else { host }.to_owned())
    }

    /// Its name in Docker's configuration, as credential helpers are asked for it.
    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    /// What to type to get credentials for it.
    pub(crate) fn login(&self) -> String {
        if self.0 == HUB { "docker login".to_owned() } else { format!("docker login {}", self.0) }
    }
}

impl fmt::Display for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 == HUB { HUB_HOSTS[0] } else { &self.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_name_their_registry_as_docker_reads_them() {
        for (image, name) in [
            ("web", HUB),
            ("web:1", HUB),
            ("shop/web:1", HUB),
            ("shop/web@sha256:00", HUB),
            ("docker.io/shop/web", HUB),
            ("index.docker.io/shop/web", HUB),
            ("localhost/web", "localhost"),
            ("registry:5000/web:1", "registry:5000"),
            ("registry.example.org/shop/web", "registry.example.org"),
            ("[2001:db8::1]:5000/web", "[2001:db8::1]:5000"),
            ("Registry/web", "Registry"),
            ("", HUB),
        ] {
            assert_eq!(Registry::of_image(image).name(), name, "{image}");
        }
        assert_eq!(Registry::of_image("web").to_string(), "docker.io");
    }

    #[test]
    fn addresses_of_a_registry_mean_it() {
        let hub = Registry::of_image("web");
        let own = Registry::of_image("registry.example.org:5000/web");
        for (key, registry) in [
            (HUB, &hub),
            ("docker.io", &hub),
            ("https://index.docker.io/v1", &hub),
            ("registry.example.org:5000", &own),
            ("https://registry.example.org:5000", &own),
            ("http://registry.example.org:5000/v2/", &own),
        ] {
            assert_eq!(Registry::of_key(key), *registry, "{key}");
        }
        for key in ["", "registry.example.org", "https://registry.example.org/", "docker.io.example.org"] {
            let other = Registry::of_key(key);
            assert!(other != own && other != hub, "{key}");
        }
    }
}
