//! docs/document.md says what the code does: its tables are the code's, its examples are good.

use std::fmt::Write as _;

use model::document::fields::{ENVIRONMENT, Field, LISTS, Shape};
use tests::cluster::{ClusterFolder, shop};
use tests::service::Executable;
use tests::{Launch, repository, update};

/// What a field holds, as a person would say it.
fn said(shape: Shape) -> String {
    match shape {
        Shape::Text => "text".into(),
        Shape::Word(words) => {
            let words: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
            format!("one of {}", words.join(", "))
        }
        Shape::Texts => "list of texts".into(),
        Shape::Labels => "map of texts".into(),
        Shape::Truth => "`true` or `false`".into(),
        Shape::Count => "whole number".into(),
        Shape::Bytes => "bytes: `1073741824`, `512MiB`, `16GiB`".into(),
        Shape::Address => "IP address".into(),
        Shape::Subnet => "IPv4 network: `10.42.7.0/24`".into(),
        Shape::Addresses => "list of IP addresses".into(),
        Shape::Ports => "list of `[address:]public:private/protocol`".into(),
        Shape::Object(_) => "map, its fields below".into(),
        Shape::Any => "anything".into(),
        Shape::Host => "name of a host".into(),
        Shape::Hosts => "list of names of hosts".into(),
        Shape::Network => "name of a network".into(),
        Shape::Container => "name of a container".into(),
        Shape::Service => "`stack/service`, `stack/service/sidekick`".into(),
        Shape::ContainerLinks => "map of link name to name of a container".into(),
        Shape::ServiceLinks => "map of `stack/service` to alias".into(),
    }
}

fn table(fields: &[Field]) -> String {
    let mut text = "| Field | Holds | Meaning |\n|---|---|---|\n".to_owned();
    rows(&mut text, "", fields);
    text
}

fn rows(text: &mut String, prefix: &str, fields: &[Field]) {
    for field in fields {
        let required = if field.required { " (required)" } else { "" };
        // A bar would end the cell.
        let meaning = field.meaning.replace('|', "\\|");
        let _ = writeln!(text, "| `{prefix}{}`{required} | {} | {meaning} |", field.key, said(field.shape));
        if let Shape::Object(inner) = field.shape {
            rows(text, &format!("{prefix}{}.", field.key), inner);
        }
    }
}

/// The document with the table of `name` in its place.
fn with_table(text: &str, name: &str, fields: &[Field]) -> String {
    let mark = format!("<!-- fields: {name} -->\n");
    let begin = text.find(&mark).unwrap_or_else(|| panic!("docs/document.md has no place for the fields of {name}"));
    let begin = begin + mark.len();
    let end = begin + text[begin..].find("<!-- end -->").expect("a table's place has an end");
    format!("{}{}{}", &text[..begin], table(fields), &text[end..])
}

#[test]
fn the_tables_of_the_documentation_are_those_of_the_code() {
    let path = repository().join("docs/document.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let all = std::iter::once(("environment", ENVIRONMENT)).chain(LISTS);
    let right = all.fold(text.clone(), |text, (name, fields)| with_table(&text, name, fields));
    if update() {
        std::fs::write(&path, &right).unwrap();
    }
    assert!(
        update() || text == right,
        "docs/document.md is behind the code; UPDATE=1 cargo test -p tests --test document"
    );
}

#[test]
fn the_examples_of_the_documentation_are_good_clusters() {
    let text = std::fs::read_to_string(repository().join("docs/document.md")).unwrap();
    let examples: Vec<_> = text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(!examples.is_empty());
    for example in examples {
        let folder = ClusterFolder::new(example);
        let ended = Launch::bare(Executable::Agent).word("check").word(folder.file()).run();
        assert_eq!(ended.code, Some(0), "{}\n{example}", ended.output);
    }
    let ended = Launch::bare(Executable::Agent).word("check").word(shop()).run();
    assert_eq!(ended.code, Some(0), "{}", ended.output);
}
