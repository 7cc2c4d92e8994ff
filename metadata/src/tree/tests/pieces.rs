//! Pieces of bodies that clients share, and bodies that are made in pieces.

use super::*;

/// Services of many containers, each with a token and a sidekick whose containers have no address of their own.
fn large() -> Tree {
    let mut objects = vec![
        r#"{"metadata_kind":"host","uuid":"h","name":"h","agent_ip":"10.0.0.1"}"#.to_owned(),
        r#"{"metadata_kind":"stack","uuid":"st","name":"Shop"}"#.to_owned(),
        r#"{"metadata_kind":"environment","name":"prod","uuid":"e"}"#.to_owned(),
    ];
    for service in 0..3 {
        for name in ["Web", "Log"] {
            objects.push(format!(
                r#"{{"metadata_kind":"service","uuid":"s{service}","name":"{name}{service}","stack_name":"Shop","stack_uuid":"st","token":"tok-{service}-{name}"}}"#
            ));
            for container in 0..12 {
                let address =
                    if name == "Web" { format!(r#""10.1.{service}.{container}""#) } else { "null".to_owned() };
                let uuid = format!("{name}-{service}-{container}");
                objects.push(format!(
                    r#"{{"metadata_kind":"container","uuid":"{uuid}","name":"{uuid}","primary_ip":{address},"host_uuid":"h","state":"running"}}"#
                ));
                // The last service has no container with an address.
                if service < 2 || name == "Log" {
                    objects.push(format!(
                        r#"{{"metadata_kind":"serviceContainerLink","service_uuid":"s{service}","service_name":"{name}{service}","container_uuid":"{uuid}"}}"#
                    ));
                }
            }
        }
    }
    tree(&format!("[{}]", objects.join(",")))
}

#[test]
fn pieces_that_clients_share_are_the_same_for_all_of_them() {
    let tree = large();
    let mut shared = std::collections::HashMap::new();
    let mut uses = 0;
    for tokens in [ServiceTokens::Recorded, ServiceTokens::Own] {
        shared.clear();
        for from in ["192.0.2.1", "10.1.0.0", "10.1.0.1", "10.1.1.7", "10.1.2.5"] {
            for format in [Format::Json, Format::Yaml, Format::Text] {
                for version in ["2015-07-25", "latest"] {
                    for path in [
                        "",
                        "/containers",
                        "/services",
                        "/stacks",
                        "/self",
                        "/self/stack",
                        "/self/service",
                        "/self/service/containers",
                        "/services/0",
                        "/stacks/0",
                        "/stacks/0/services",
                        "/hosts",
                        "/name",
                    ] {
                        let target = format!("/{version}{path}");
                        let client = Client { tokens, ..client(from) };
                        let wanted = Wanted { format, page: false };
                        let outcome = Outcome::of(&tree, Method::Read, target.as_bytes(), client, wanted);
                        let Outcome::Show(question) = outcome else { continue };
                        let parts = question.parts(&tree);
                        for part in &parts {
                            if let Part::Shared(piece, keys) = part {
                                uses += 1;
                                let text = question.part(&tree, keys);
                                let known = shared.entry(piece.clone()).or_insert_with(|| text.clone());
                                assert_eq!(*known, text, "{from} {target} {piece:?}");
                            }
                        }
                        assert_eq!(shown(&tree, &question).body, question.part(&tree, &[]), "{from} {target}");
                    }
                }
            }
        }
    }
    assert!(uses > 3 * shared.len(), "{uses} {}", shared.len());
}

#[test]
fn heavy_values_are_not_shown_at_once() {
    let tree = large();
    for (target, format, heavy) in [
        ("/latest", Format::Text, false),
        ("/latest", Format::Json, true),
        ("/latest/containers", Format::Text, false),
        ("/latest/containers", Format::Json, true),
        ("/latest/containers/0", Format::Json, false),
        ("/latest/stacks/0", Format::Text, false),
        ("/latest/stacks/0", Format::Yaml, true),
        ("/latest/services/0/containers", Format::Text, false),
        ("/latest/self", Format::Json, true),
        ("/latest/self/host", Format::Json, false),
        ("/latest/name", Format::Json, false),
    ] {
        let wanted = Wanted { format, page: false };
        let outcome = Outcome::of(&tree, Method::Read, target.as_bytes(), client("10.1.0.0"), wanted);
        assert_eq!(matches!(outcome, Outcome::Show(_)), heavy, "{target} {format:?}");
    }
}
