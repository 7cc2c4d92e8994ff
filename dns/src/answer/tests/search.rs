//! Short names: search lists, links, and stacks that exist only because of labels.

use super::*;

#[test]
fn search_lists_are_tried_here() {
    check(
        &shop(&settings()),
        "
        web.shop. A -> NOERROR A 10.42.0.1 A 10.42.0.2
        web. A -> forward web.
        [10.42.0.1] web. A -> NOERROR A 10.42.0.1 A 10.42.0.2
        [10.42.0.1] LOG. A -> NOERROR A 10.42.0.1
        [10.42.0.1] log.web. A -> NOERROR A 10.42.0.1
        [10.42.0.1] web.rancher.internal. A -> NXDOMAIN
        [10.42.0.1] www.example.com. A -> forward www.example.com.
        ",
    );
    let zone = shop(&Settings { ndots: 1, ..settings() });
    check(&zone, "[10.42.0.1] web. A -> NOERROR A 10.42.0.1 A 10.42.0.2\nweb.shop. A -> forward web.shop.");
}

#[test]
fn links_are_for_their_own_clients() {
    check(
        &shop(&settings()),
        "
        [10.42.0.1] database. A -> NOERROR A 10.42.3.1
        [10.42.0.1] Database.data. A -> NOERROR A 10.42.3.1
        [10.42.0.1] database.rancher.internal. A -> NOERROR A 10.42.3.1
        [10.42.0.1] database. TXT -> NOERROR
        [10.42.0.1] outside. A -> forward www.example.com. CNAME www.example.com.
        [10.42.0.1] gone. A -> forward gone.
        [fd00::1] database. A -> NOERROR A 10.42.3.1
        [::ffff:10.42.0.1] database. A -> NOERROR A 10.42.3.1
        [10.42.3.1] database. A -> forward database.
        database.rancher.internal. A -> NXDOMAIN
        [fd00::5] peer. A -> NOERROR A 10.42.3.1
        [fd00::5] www.example.com. A -> forward www.example.com. at 192.0.2.53:53
        ",
    );
}

#[test]
fn other_environments_are_reached_through_links() {
    let snapshot = objects(
        r#"[
        {"metadata_kind":"environment","name":"prod","uuid":"e1","region_name":"eu"},
        {"metadata_kind":"container","uuid":"c1","name":"far-1","primary_ip":"10.0.0.1","environment_uuid":"e1","dns_search":["rancher.internal"]},
        {"metadata_kind":"container","uuid":"c2","name":"foreign-1","primary_ip":"10.0.0.2","environment_uuid":"e2"},
        {"metadata_kind":"service","uuid":"s1","name":"far","stack_name":"shop","environment_uuid":"e1"},
        {"metadata_kind":"service","uuid":"s2","name":"foreign","stack_name":"shop","environment_uuid":"e2"},
        {"metadata_kind":"serviceContainerLink","service_uuid":"s1","service_name":"far","container_uuid":"c1"},
        {"metadata_kind":"serviceContainerLink","service_uuid":"s2","service_name":"foreign","container_uuid":"c2"},
        {"metadata_kind":"serviceLink","service_uuid":"s1","key":"us/Staging/Shop/web","value":"StgWeb"},
        {"metadata_kind":"serviceLink","service_uuid":"s1","key":"qa/shop/web","value":"qa"},
        {"metadata_kind":"serviceLink","service_uuid":"s1","key":"us/staging/shop/none","value":"none"},
        {"metadata_kind":"external","objects":[
            {"metadata_kind":"environment","name":"staging","uuid":"e3","region_name":"us"},
            {"metadata_kind":"container","uuid":"x1","name":"web-1","primary_ip":"10.1.0.1","health_state":"unhealthy"},
            {"metadata_kind":"service","uuid":"x","name":"Web","stack_name":"Shop","health_check":{"port":80}},
            {"metadata_kind":"serviceContainerLink","service_uuid":"x","service_name":"Web","container_uuid":"x1"}]}
        ]"#,
    );
    let zone = snapshot::build(&snapshot, &settings(), 1);
    check(
        &zone,
        "
        [10.0.0.1] stgweb. A -> NOERROR A 10.1.0.1
        [10.0.0.1] STGWEB.rancher.internal. A -> NOERROR A 10.1.0.1
        [10.0.0.1] qa. A -> forward qa.
        stgweb. A -> forward stgweb.
        foreign.shop.rancher.internal. A -> NXDOMAIN
        foreign-1.rancher.internal. A -> NXDOMAIN
        ",
    );
    let defects = zone.defects();
    let paths: Vec<_> = defects.iter().map(|defect| defect.path.as_str()).collect();
    assert_eq!(paths, ["services/shop/far/links/qa/shop/web", "services/shop/far/links/us/staging/shop/none"]);
}

/// Stacks of compose projects; who starts a container chooses their names.
fn projects() -> Zone {
    let text = r"
berth: 1
services:
  - {name: github, stack: com, expose: [443/tcp]}
  - {name: www, stack: com, sidekick_of: github}
  - {name: github.com, stack: com, kind: dnsService, links: {com/github: x}}
  - {name: web, stack: shop}
  - {name: db, stack: data}
containers:
  - {name: evil-1, service: com/github, primary_ip: 172.17.0.2}
  - {name: evil-2, service: com/github/www, primary_ip: 172.17.0.3}
  - {name: github.org, primary_ip: 172.17.0.4}
  - {name: b.shop, primary_ip: 172.17.0.5}
  - {name: plain, primary_ip: 172.17.0.6}
  - {name: web-1, service: shop/web, primary_ip: 172.17.0.7}
  - {name: beside, primary_ip: 172.17.0.8, dns_search: [com.rancher.internal, rancher.internal]}
  - {name: db-1, service: data/db, primary_ip: 172.17.0.9}
";
    let reading = source::format::read(text).unwrap();
    assert_eq!(reading.defects, []);
    let mut snapshot = reading.snapshot;
    for stack in snapshot.stacks.clone().values().filter(|stack| stack.name().is_some_and(|name| **name != *"data")) {
        snapshot.stacks.insert(Arc::new(stack.known_by_labels()));
    }
    snapshot::build(&snapshot, &settings(), 1)
}

#[test]
fn labels_and_names_of_containers_change_no_name_of_the_internet() {
    check(
        &projects(),
        "
        github.com. A -> forward github.com.
        www.github.com. A -> forward www.github.com.
        _443._tcp.github.com. SRV -> forward _443._tcp.github.com.
        github.com.com. A -> forward github.com.com.
        github.org. A -> forward github.org.
        [172.17.0.6] github.com. A -> forward github.com.
        [172.17.0.6] github.org. A -> forward github.org.
        [172.17.0.7] github.com. A -> forward github.com.
        [172.17.0.7] b. A -> forward b.
        [172.17.0.4] github.org. A -> forward github.org.
        github.com.rancher.internal. A -> NOERROR A 172.17.0.2
        github.org.rancher.internal. A -> NOERROR A 172.17.0.4
        b.shop.rancher.internal. A -> NOERROR A 172.17.0.5
        ",
    );
}

#[test]
fn short_names_of_a_project_are_for_itself_and_for_who_shares_its_network() {
    check(
        &projects(),
        "
        [172.17.0.2] github.com. A -> NOERROR A 172.17.0.2
        [172.17.0.2] www.github.com. A -> NOERROR A 172.17.0.3
        [172.17.0.2] github. A -> NOERROR A 172.17.0.2
        [172.17.0.2] _443._tcp.github.com. SRV -> NOERROR SRV 0 0 443 evil-1.rancher.internal.
        [172.17.0.8] github.com. A -> NOERROR A 172.17.0.2
        [172.17.0.7] web. A -> NOERROR A 172.17.0.7
        [172.17.0.7] web.shop. A -> NOERROR A 172.17.0.7
        [172.17.0.6] web.shop. A -> forward web.shop.
        [172.17.0.6] web.shop.rancher.internal. A -> NOERROR A 172.17.0.7
        [172.17.0.6] db.data. A -> NOERROR A 172.17.0.9
        [172.17.0.6] plain. A -> NOERROR A 172.17.0.6
        [172.17.0.7] plain. A -> NOERROR A 172.17.0.6
        ",
    );
}

#[test]
fn texts_of_a_container_without_a_service_do_not_name_one() {
    let reply = testing::ask(&projects(), "192.0.2.1", &message("plain.rancher.internal.", RecordType::TXT), 0);
    let reply = reply.unwrap();
    assert_eq!(show(&reply.answers), " TXT state=running");
}
