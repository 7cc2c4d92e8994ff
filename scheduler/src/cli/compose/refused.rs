//! Keys that are refused, each with what is there instead. ◇

use crate::cli::compose::section::Section;
use crate::place::invalid::Invalid;

/// Keys of a service.
const OF_SERVICES: [(&str, &str); 23] = [
    ("annotations", "labels"),
    ("blkio_config", "none: no request has shares of a disk"),
    ("cpu_rt_period", "cpu_period and cpu_quota"),
    ("cpu_rt_runtime", "cpu_period and cpu_quota"),
    ("default_certs", "default_cert or certs"),
    ("develop", "none: nothing is built or watched here"),
    ("disks", OF_MACHINES),
    ("driver_opts", "none: networks are made on the hosts"),
    ("external_ips", "image: rancher/external-service beside it"),
    ("gpus", "devices"),
    ("mac_address", "none: two units would have it during an update, so the engine gives each one of its own"),
    ("memory", OF_MACHINES),
    ("models", "a service with an image that serves the model"),
    ("network_driver", "a network that is made on the hosts (`docker network create`)"),
    ("post_start", OF_HOOKS),
    ("pre_stop", OF_HOOKS),
    ("provider", "a service with an image"),
    ("runtime", "none: the default runtime of each engine"),
    ("selector_container", "a service with an image"),
    ("storage_driver", "a plugin of each engine (`docker plugin install`), which volume_driver names"),
    ("use_api_socket", "a volume of the engine's socket, which the policy has to allow"),
    ("userdata", OF_MACHINES),
    ("vcpu", OF_MACHINES),
];

const OF_MACHINES: &str = "a container: no virtual machines are run here";

const OF_HOOKS: &str = "an entrypoint that does it";

/// Keys at the top of a file.
const OF_FILES: [(&str, &str); 1] = [("models", "a service with an image that serves the model")];

/// Refuses keys of a service that would not be honoured.
pub(super) fn of_service(service: &Section<'_>, known: &[&str]) -> Result<(), Invalid> {
    with_reason(service, &OF_SERVICES)?;
    service
        .only(known)
        .map_err(|error| Invalid { expected: "a key of docs/stacks.md, or one that begins with x-".into(), ..error })
}

/// The same of a file.
pub(super) fn of_file(file: &Section<'_>, known: &[&str]) -> Result<(), Invalid> {
    with_reason(file, &OF_FILES)?;
    file.only(known)
}

fn with_reason(section: &Section<'_>, refused: &[(&str, &'static str)]) -> Result<(), Invalid> {
    match refused.iter().find(|(key, _)| section.get(key).is_some()) {
        None => Ok(()),
        Some((key, expected)) => Err(Invalid::new(section.at(key), "is not supported", *expected)),
    }
}
