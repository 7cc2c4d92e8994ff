//! Where in a compose file the fields of a request come from, for errors about the request. ◇

/// The way to fields in a request, each with the way to what has said it in the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins(Vec<(String, String)>);

impl Origins {
    /// Those of a request that stands in the file as it is, there.
    pub(super) fn itself(at: &str) -> Self {
        Self(vec![(String::new(), at.to_owned())])
    }

    /// Notes where a field, and all below it that is not noted itself, comes from.
    pub(super) fn put(&mut self, field: impl Into<String>, origin: impl Into<String>) {
        self.0.push((field.into(), origin.into()));
    }

    /// The same in one of several documents.
    pub(super) fn within(mut self, place: impl Fn(&str) -> String) -> Self {
        for (_, origin) in &mut self.0 {
            *origin = place(origin);
        }
        self
    }

    /// The ways in the file.
    pub(crate) fn all(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(_, origin)| &**origin)
    }

    /// What of the file has said a field: the way to the closest that is noted, and the rest behind it.
    pub(crate) fn of(&self, field: &str) -> Option<(&str, String)> {
        let below = |own: &str| match field.strip_prefix(own)? {
            rest if own.is_empty() || rest.is_empty() => Some(rest),
            rest => rest.strip_prefix('.').or_else(|| rest.starts_with('[').then_some(rest)),
        };
        let noted = self.0.iter().filter_map(|(own, origin)| Some((own.len(), origin, below(own)?)));
        let (_, origin, rest) = noted.max_by_key(|(length, ..)| *length)?;
        Some((origin, as_in_compose(rest)))
    }
}

/// The way to a field of a container, where a compose file calls it otherwise than a request.
fn as_in_compose(field: &str) -> String {
    match field {
        // What of it is in the message.
        "engine" => "",
        "limits.memory" => "mem_limit",
        "start_after" => "depends_on",
        "limits.milli_cpu" => "cpus",
        "resources.memory" => "mem_reservation",
        other => other.strip_prefix("engine.").unwrap_or(other),
    }
    .to_owned()
}

/// Two parts of a way to a field.
pub(crate) fn joined(origin: &str, rest: &str) -> String {
    let dot = if origin.is_empty() || rest.is_empty() || rest.starts_with('[') { "" } else { "." };
    format!("{origin}{dot}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_in_what_has_said_it() {
        let mut origins = Origins::default();
        for (field, origin) in [
            ("", "services.web"),
            ("files[1]", "services.web.secrets[0]"),
            ("files[1].content", "secrets.pw.file"),
            ("sidekicks[0]", "services.log"),
        ] {
            origins.put(field, origin);
        }
        for (field, expected) in [
            ("image", "services.web.image"),
            ("", "services.web"),
            ("engine.cap_add[1]", "services.web.cap_add[1]"),
            ("engine", "services.web"),
            ("limits.memory", "services.web.mem_limit"),
            ("files[1]", "services.web.secrets[0]"),
            ("files[1].target", "services.web.secrets[0].target"),
            ("files[1].content", "secrets.pw.file"),
            ("files[1].content_base64", "services.web.secrets[0].content_base64"),
            ("files[10]", "services.web.files[10]"),
            ("sidekicks[0].limits.memory", "services.log.mem_limit"),
            ("sidekicks[0].volumes[2]", "services.log.volumes[2]"),
        ] {
            let (origin, rest) = origins.of(field).unwrap();
            assert_eq!(joined(origin, &rest), expected, "{field}");
        }
        let listed = Origins::itself("[2]");
        assert_eq!(listed.of("ports[0]"), Some(("[2]", "ports[0]".to_owned())));
    }
}
