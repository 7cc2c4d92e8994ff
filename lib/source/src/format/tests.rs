use super::*;

fn refused(text: &str) -> String {
    read(text).unwrap_err().to_string()
}

#[test]
fn the_content_tells_the_form() {
    for (text, form) in [
        ("berth: 1\ncontainers:\n- name: a\n", Form::Document),
        (r#"{"containers":[{"name":"a"}]}"#, Form::Document),
        (r#"{"latest":{"default":{"containers":[]}}}"#, Form::Answers),
        ("latest:\n  default:\n    version: '1'\n", Form::Answers),
        (r#"{"latest":{"default":{"a":1,},},}"#, Form::Answers),
    ] {
        assert_eq!(read(text).unwrap().form, form, "{text}");
    }
}

#[test]
fn what_holds_no_cluster_is_refused_with_a_place() {
    for (text, problem) in [
        ("", "the file is empty"),
        (" \n", "the file is empty"),
        ("{", "line 1, column 1: not JSON: EOF while parsing an object"),
        ("{\"a\":\n 1]", "line 2, column 3: not JSON: expected `,` or `}`"),
        ("a: [", "line 2, column 1: not YAML: while parsing a node, did not find expected node content"),
        (
            "42",
            "expected a Berth document, saved answers {\"Version\", \"Data\"}, or answers by version and client; found a number",
        ),
        (
            "null",
            "expected a Berth document, saved answers {\"Version\", \"Data\"}, or answers by version and client; found null",
        ),
        (
            "<html><body>502 Bad Gateway</body></html>",
            "expected a Berth document, saved answers {\"Version\", \"Data\"}, or answers by version and client; found text",
        ),
        ("berth: 1\nhosts: 5\n", "line 2, column 8: hosts: expected a list, found a number"),
        ("a: 1\n---\nb: 2\n", "line 2, column 1: more than one document"),
        (r#"{"latest":{"default":{"n":1e99999}}}"#, "line 1, column 33: not JSON: number out of range"),
        (r#"{"Version":"1","Data":"AAAA"}"#, "Data is cut off"),
    ] {
        assert_eq!(refused(text), problem, "{text}");
    }
    assert!(refused(&"[".repeat(200_000)).contains("recursion limit"));
    assert!(refused(&"{\"a\":".repeat(200_000)).contains("recursion limit"));
    assert!(refused(&"- ".repeat(200_000)).contains("nested more than 64 levels deep"));
}

#[test]
fn an_alias_bomb_is_refused_before_it_unfolds() {
    let mut bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for letter in 'b'..'n' {
        let before = char::from(letter as u8 - 1);
        let aliases = vec![format!("*{before}"); 9].join(",");
        bomb.extend([letter.to_string(), format!(": &{letter} [{aliases}]\n")]);
    }
    assert!(refused(&bomb).contains("more than 20000000 values"), "{}", refused(&bomb));
}

#[test]
fn defects_have_their_line() {
    let yaml = "berth: 1\ncontainers:\n- name: good\n- name: bad\n  primary_ip: nowhere\n";
    let json = "{\"containers\": [\n {\"name\": \"good\"},\n {\"name\": \"bad\",\n  \"primary_ip\": \"nowhere\"}\n]}";
    let answers =
        "{\"latest\": {\"default\": {\"containers\": [\n {\"uuid\": \"u\"},\n {\"name\": \"no-uuid\"}]}},\n\"n\": 1}";
    for (text, lines) in [(yaml, vec![5]), (json, vec![4]), (answers, vec![4, 3])] {
        let found: Vec<_> = read(text).unwrap().defects.iter().map(|defect| defect.at.unwrap().line).collect();
        assert_eq!(found, lines, "{text}");
    }
}

#[test]
fn anchors_merges_and_yaml_1_1_words_are_understood_in_answers() {
    let text = "base: &base\n  default: &tree\n    on: yes\n    octal: 010\nlatest:\n  <<: *base\n  10.0.0.1: *tree\n";
    let reading = read(text).unwrap();
    let answers = reading.snapshot.answers.unwrap();
    let tree = &answers.versions()["latest"]["10.0.0.1"];
    assert_eq!((tree.get("on"), tree.get("octal")), (Some(&Value::Bool(true)), Some(&Value::Int(8))));
    assert_eq!(answers.versions()["latest"]["default"], *tree);
}

#[test]
fn what_is_merged_is_a_map_and_tags_are_those_of_yaml() {
    let refused = |text: &str| parse(text).unwrap_err().to_string();
    for (text, error) in [
        ("a:\n  b:\n    <<: 5\n    c: d\n", "line 3, column 9: a.b.<<: expected a map, or a list of maps"),
        ("a: [x, {<<: [{c: d}, 1]}]\n", "line 1, column 22: a[1].<<: expected a map, or a list of maps"),
        ("<<:\na: b\n", "<<: expected a map, or a list of maps"),
        ("x: &x [5]\na: {<<: *x}\n", "a.<<: expected a map, or a list of maps"),
        ("a: {b: !foo c}\n", "line 1, column 8: a.b: the tag !foo is not supported"),
        ("a:\n- !reset []\n", "a[0]: the tag !reset is not supported"),
        ("a: {<<: !foo {}}\n", "a.<<: the tag !foo is not supported"),
        ("a: !!foo c\n", "a: the tag !!foo is not supported"),
        ("a: !<foo> c\n", "a: the tag foo is not supported"),
        ("!foo\na: b\n", "the tag !foo is not supported"),
    ] {
        assert!(refused(text).ends_with(error), "{text}: {}", refused(text));
    }
    for text in [
        "a: ! b\n",
        "a: !!str 5\n",
        "a: !<tag:yaml.org,2002:int> 5\n",
        "a: !!map {<<: [{b: c}, {d: e}]}\n",
        "'<<': 5\n",
    ] {
        assert!(parse(text).is_ok(), "{text}: {}", refused(text));
    }
}

#[test]
fn line_separators_end_lines_in_single_quotes() {
    let text = "latest:\n  default:\n    a: 'x \u{2028}   y'\n    b: \"x \\L y\"\n";
    let answers = read(text).unwrap().snapshot.answers.unwrap();
    let tree = &answers.versions()["latest"]["default"];
    assert_eq!(tree.get("a"), Some(&Value::text("x\u{2028}y")));
    assert_eq!(tree.get("b"), Some(&Value::text("x \u{2028} y")));
}

#[test]
fn the_end_of_a_text_tells_whether_it_may_be_cut() {
    for (text, ending) in [
        ("{\"containers\":[{\"name\":\"a\"}]}", Ending::Closed),
        ("containers:\n- name: a\n...\n", Ending::Marked),
        ("containers:\n- name: a\n", Ending::Line),
        ("containers:\n- name: a", Ending::Open),
    ] {
        assert_eq!(read(text).unwrap().ending, ending, "{text}");
    }
}

#[test]
fn windows_editors_are_understood() {
    let utf16: Vec<u8> = "\u{feff}containers:\r\n- name: a\r\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert_eq!(read(&text(utf16).unwrap()).unwrap().snapshot.containers.len(), 1);
    let utf8 = "\u{feff}containers:\n- name: a\n".as_bytes().to_vec();
    assert_eq!(read(&text(utf8).unwrap()).unwrap().snapshot.containers.len(), 1);
    assert_eq!(text(b"a\nb\xff".to_vec()).unwrap_err().to_string(), "line 2, column 2: not UTF-8");
}

/// Answers saved by the predecessor's v0.10.4.
const SAVED: &str = include_str!("../../../../tests/fixtures/metadata/answers.delta.json");

#[test]
fn saved_answers_of_the_predecessor_are_read() {
    let reading = read(SAVED).unwrap();
    assert_eq!((reading.form, reading.defects), (Form::Envelope, Vec::new()));
    let (again, ..) = model::objects::read(reading.snapshot.objects());
    assert_eq!(again, reading.snapshot);
    assert_eq!(&*reading.snapshot.source_version, "42-9a0364b9e99bb480dd25e1f0284c8555");
    let accounts: Vec<_> = reading.credentials.iter().map(|account| &*account.public_value).collect();
    assert_eq!(accounts, ["QAKEY", "STGKEY"]);
}

#[test]
fn saved_answers_that_are_cut_anywhere_are_refused() {
    use base64::Engine as _;
    let envelope: Value = serde_json::from_str(SAVED).unwrap();
    let standard = base64::engine::general_purpose::STANDARD;
    let data = standard.decode(envelope.as_map().unwrap().text("Data").unwrap().as_bytes()).unwrap();
    for keep in (0..data.len()).step_by(97).chain([data.len() - 1]) {
        let cut = format!(r#"{{"Version":"1","Data":"{}"}}"#, standard.encode(&data[..keep]));
        assert!(read(&cut).is_err(), "{keep} of {} bytes", data.len());
    }
}

#[test]
fn no_key_that_is_there_twice_overrides_the_first_one() {
    for (text, problem) in [
        ("a: 1\nb: {c: [1, {d: 2}]}\n", ""),
        (r#"{"a": 1, "b": {"a": [1.5, null, true, {"a": -1}]}}"#, ""),
        ("x: &x {a: 1}\ny: {<<: *x, a: 2}\n", ""),
        ("a: 1\nb: 2\na: 3\n", "line 3, column 4: the key \"a\" is there twice"),
        ("s: [{a: 1, \"a\": 2}]\n", "the key \"a\" is there twice"),
        (r#"{"s": {"a": 1,"#, "EOF"),
        ("{\n\t\"s\": [{\"a\": 1,\n\t\"\\u0061\": 1}]}", "line 3"),
        (r#"{"a": 1, "a": 1}"#, "the key \"a\" is there twice"),
        (r#"{"a": 1, "a": 1,}"#, "the key \"a\" is there twice"),
    ] {
        let error = parse_unique(text).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(problem) && error.is_empty() == problem.is_empty(), "{text}: {error}");
    }
}
