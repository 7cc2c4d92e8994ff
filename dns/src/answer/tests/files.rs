//! Files of the predecessor's answers.

use super::*;

#[test]
fn a_file_of_answers_is_served_as_written() {
    let file = r#"{
        "default": {"search": ["rancher.internal"], "authoritative": ["rancher.internal"], "recurse": ["192.0.2.1", "[fd00::53]:54"],
            "a": {"app.": {"answer": ["10.1.2.3"], "ttl": 60}, "v6.": {"answer": ["fd00::1", "", "x"]},
                  "web.shop.rancher.internal.": {"answer": ["10.42.0.1"]}},
            "cname": {"things.": {"answer": "app."}, "one.": {"answer": "two."}, "two.": {"answer": "one."},
                      "out.rancher.internal.": {"answer": "www.Example.com"}, "lost.rancher.internal.": {"answer": "no.rancher.internal."}},
            "ptr": {"10.42.0.1": {"answer": "web."}, "fd00::1": {"answer": "v6."}, "2.0.42.10.in-addr.arpa.": {"answer": "x."}},
            "txt": {"note.": {"answer": ["a\\066c", "two"]}}},
        "10.42.0.7": {"search": ["shop.rancher.internal"], "recurse": ["192.0.2.9:53"], "a": {"app.": {"answer": ["10.9.9.9"]}}},
        "nonsense": {}
    }"#;
    let node = model::Node::from_value(&serde_json::from_str(file).unwrap());
    assert!(DnsAnswers::is_dns_answers(&node));
    let (answers, defects) = DnsAnswers::read(&node).unwrap();
    let paths: Vec<_> = defects.iter().map(|defect| defect.path.as_str()).collect();
    assert_eq!(paths, ["default/a/v6./answer", "default/a/v6./answer", "nonsense"]);
    check(
        &answers.zone(&settings(), 1),
        "
        app. A -> NOERROR A 10.1.2.3
        app. AAAA -> NOERROR
        app. MX -> forward app. at 192.0.2.1:53 at [fd00::53]:54
        v6. AAAA -> NOERROR AAAA fd00::1
        things. A -> NOERROR A 10.1.2.3 CNAME app.
        web.shop. A -> NOERROR A 10.42.0.1
        out. A -> forward www.example.com. at 192.0.2.1:53 at [fd00::53]:54 CNAME www.Example.com.
        lost.rancher.internal. A -> NXDOMAIN CNAME no.rancher.internal.
        one. A -> ServFail
        shop.rancher.internal. A -> NOERROR
        web.shop.rancher.internal. TXT -> NOERROR
        1.0.42.10.in-addr.arpa. PTR -> NOERROR PTR web.
        2.0.42.10.in-addr.arpa. PTR -> NOERROR PTR x.
        note. TXT -> NOERROR TXT aBc TXT two
        [10.42.0.7] app. A -> NOERROR A 10.9.9.9
        [10.42.0.7] things. A -> NOERROR A 10.9.9.9 CNAME app.
        [10.42.0.7] web. A -> NOERROR A 10.42.0.1
        [10.42.0.7] example.com. A -> forward example.com. at 192.0.2.9:53
        ",
    );
}

#[test]
fn what_is_no_file_of_answers_is_refused() {
    for json in ["{}", "null", "[]", "42", r#"{"latest":{"default":{"a":1}}}"#, r#"{"default":3}"#] {
        let value: Value = serde_json::from_str(json).unwrap();
        assert!(DnsAnswers::from_value(&value).is_err(), "{json}");
        assert!(!DnsAnswers::is_dns_answers(&model::Node::from_value(&value)), "{json}");
    }
}
