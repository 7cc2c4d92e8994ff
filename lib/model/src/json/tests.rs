use proptest::prelude::*;
use serde_json::from_str;

use super::*;

/// What this reader accepts, the complete one reads as the same; all that is usual, it accepts.
fn check(text: &str, usual: bool) {
    let complete = from_str::<Value>(text);
    let found = read(text);
    if let Some(found) = &found {
        assert_eq!(Some(found), complete.as_ref().ok(), "{text}");
        assert_eq!(format!("{found:?}"), format!("{:?}", complete.as_ref().unwrap()), "{text}");
    }
    assert_eq!(found.is_some(), usual && complete.is_ok(), "{text}: {found:?} {complete:?}");
}

#[test]
fn values_are_those_of_a_complete_parser() {
    for text in [
        "null",
        " true ",
        "false",
        "\t\"a\"\r\n",
        "[]",
        "{}",
        "[ ]",
        "{ }",
        "[1,2 , 3]",
        "{\"a\" : 1 , \"b\":[{}]}",
        "0",
        "-0",
        "-0.0",
        "7",
        "-7",
        "42.0",
        "1e3",
        "1E+3",
        "1.5e-7",
        "0.1",
        "123456789012345678",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        "-9223372036854775808",
        "-9223372036854775809",
        "1e308",
        "4.9e-324",
        "1e-400",
        "0.30000000000000004",
        r#""\"\\\/\b\f\n\r\t""#,
        r#""\u00e9\u65e5\ud83d\ude00 é日😀""#,
        r#""\u0000""#,
        r#"{"\u0061":1,"a":2}"#,
        r#"{"b":1,"a":2,"b":3}"#,
        "[[{\"a\":1},{\"a\":1}],{\"a\":1,\"b\":2},{\"a\":1}]",
        "\"seven.. and eight\"",
    ] {
        check(text, true);
    }
}

#[test]
fn what_is_no_json_is_left_to_a_complete_parser() {
    for text in [
        "",
        " ",
        "nul",
        "tru",
        "truer",
        "01",
        "-",
        "+1",
        "1.",
        ".5",
        "1e",
        "1e+",
        "1e99999",
        "-1e999",
        "--1",
        "0x1",
        "\"",
        "\"a",
        "\"\\",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"\\ud800\"",
        "\"\\ud800\\u0041\"",
        "\"\\udc00\"",
        "\"a\nb\"",
        "\"\u{1f}\"",
        "[",
        "[1",
        "[1,",
        "[1,]",
        "[,1]",
        "[1 2]",
        "]",
        "{",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1",
        "{\"a\":1,",
        "{\"a\":1,}",
        "{a:1}",
        "{1:2}",
        "{\"a\" 1}",
        "{}{}",
        "1 2",
        "\u{feff}1",
        "{'a':1}",
        "NaN",
        "// c\n1",
    ] {
        check(text, false);
    }
}

#[test]
fn nesting_is_bounded_also_where_something_is_known() {
    let nested = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    check(&nested(DEPTH_MAX), true);
    check(&nested(DEPTH_MAX + 1), false);
    let inner = format!("{{\"{}\":{}}}", "k".repeat(REMEMBERED_MIN), nested(60));
    for levels in [60, 65, 66, 67] {
        let again = format!("{}{inner}{}", "[".repeat(levels), "]".repeat(levels));
        check(&format!("[{inner},{again}]"), levels < 66);
    }
}

#[test]
fn what_was_there_before_is_shared() {
    let entity =
        |name: usize| format!(r#"{{"name":"n{name}","list":["a"],"map":{{"k":{name}}},"{}":1}}"#, "x".repeat(300));
    let text = format!("[{},{},{},{}]", entity(1), entity(2), entity(1), entity(1));
    check(&text, true);
    let value = read(&text).unwrap();
    let maps: Vec<_> = value.as_list().unwrap().iter().filter_map(Value::as_map).collect();
    assert!(maps[0].same(maps[2]) && maps[2].same(maps[3]) && !maps[0].same(maps[1]));
    assert_eq!(maps[0].list("list").as_ptr(), maps[1].list("list").as_ptr());
}

#[test]
fn objects_may_stand_side_by_side() {
    let keys = |text| {
        let mut lengths = Vec::new();
        each_object(text, |object| lengths.push(object.len())).map(|()| lengths)
    };
    assert_eq!(keys(""), Some(vec![]));
    assert_eq!(keys(" \n"), Some(vec![]));
    assert_eq!(keys("{\"a\":1}\n {\"a\":{},\"b\":2}{} "), Some(vec![1, 2, 0]));
    for text in ["{},{}", "{}7", "{}[{}]", "{}nul", "{}{\"a\":{}", "{}\"a}"] {
        assert_eq!(keys(text), None, "{text}");
    }
}

/// Texts that are JSON, nearly, or not at all, with much that comes again.
fn any_text() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just("1"),
        Just("-0.5e1"),
        Just("null"),
        Just("\"a\""),
        Just("\"\\u00e9b\""),
        Just("\"ab\""),
        Just("[]"),
        Just("{}"),
        Just("{\"a\":[1]}"),
        Just(" "),
        Just("01"),
        Just("\"é\""),
    ];
    let key = prop_oneof![Just("a"), Just("ab"), Just("b"), Just("\\u0061"), Just("")];
    word.prop_map(str::to_owned).prop_recursive(5, 64, 6, move |inner| {
        let fields = prop::collection::vec((key.clone(), inner.clone()), 0..6);
        prop_oneof![
            prop::collection::vec(inner, 0..6).prop_map(|items| format!("[{}]", items.join(","))),
            fields.prop_map(|fields| {
                let fields: Vec<_> = fields.iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
                format!("{{{}}}", fields.join(", "))
            }),
        ]
    })
}

proptest! {
    #[test]
    fn both_parsers_agree(text in any_text(), cut in 0usize..200) {
        let usual = from_str::<Value>(&text).is_ok();
        check(&text, usual);
        if let Some(cut) = text.get(..cut) {
            check(cut, from_str::<Value>(cut).is_ok());
        }
    }

    #[test]
    fn plain_bytes_are_counted(bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(b'a')], 0..40)) {
        let expected = bytes.iter().position(|byte| matches!(byte, b'"' | b'\\' | ..b' ')).unwrap_or(bytes.len());
        prop_assert_eq!(plain(&bytes), expected);
    }
}
