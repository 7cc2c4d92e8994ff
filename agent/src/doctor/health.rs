//! What `agent doctor` finds out about the health of containers: each check is made once, from here.

use std::net::IpAddr;

use bollard::models::ContainerInspectResponse;
use health::Spec;
use health::check::Checker;
use model::{Map, Text, Value};

use super::engine::name;
use super::{Finding, Outcome};

/// Most containers that are listed as not being well.
const WRONG_MAX: usize = 3;

/// Makes the checks in the labels of containers; nothing where there are none.
pub(super) async fn look(containers: &[ContainerInspectResponse]) -> Vec<Finding> {
    let checker = Checker::default();
    let (mut well, mut findings) = (0, Vec::new());
    for container in containers {
        let subject = || format!("health of {}", name(container));
        let spec = match Spec::of_labels(&labels(container)) {
            Ok(Some(spec)) => spec,
            Ok(None) => continue,
            Err(wrong) => {
                let advice = "give it another label (docs/health.md): until then it counts as unchecked";
                findings.push(Finding::new(subject(), Outcome::Bad, format!("its check is wrong: {wrong}"), advice));
                continue;
            }
        };
        // In the network of its host, or of another container, it has no address of its own.
        let Some(ip) = address(container) else { continue };
        let asked = format!("{} {ip}:{}", spec.probe.word(), spec.port);
        match checker.check((ip, spec.port).into(), &spec).await.words() {
            ("pass", _) => well += 1,
            (_, reason) => {
                let found = format!("{asked}: {}", reason.unwrap_or_default());
                let advice = format!("docker logs {}; its check is in its labels io.berth.health.*", name(container));
                findings.push(Finding::new(subject(), Outcome::Odd, found, advice));
            }
        }
        if findings.len() >= WRONG_MAX {
            break;
        }
    }
    if well > 0 {
        findings.push(Finding::good("health", format!("{well} containers answer their checks from here")));
    }
    findings
}

fn labels(container: &ContainerInspectResponse) -> Map {
    let labels = container.config.as_ref().and_then(|config| config.labels.as_ref()).into_iter().flatten();
    labels.map(|(name, value)| (Text::from(name.as_str()), Value::text(value.as_str()))).collect()
}

/// The address on the first of its networks.
fn address(container: &ContainerInspectResponse) -> Option<IpAddr> {
    let networks = container.network_settings.as_ref()?.networks.as_ref()?;
    let mut names: Vec<_> = networks.keys().collect();
    names.sort_unstable();
    names.into_iter().find_map(|name| networks[name].ip_address.as_ref()?.parse().ok())
}
