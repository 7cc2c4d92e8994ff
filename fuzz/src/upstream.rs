//! Replies of upstreams: what is believed of them, and what is told of it later.
#![no_main]

use dns::fuzzing::judged;
use hickory_proto::op::Message;
use hickory_proto::rr::{Name, RData, RecordType};
use libfuzzer_sys::fuzz_target;

/// What is asked for.
const KINDS: [RecordType; 6] =
    [RecordType::A, RecordType::AAAA, RecordType::CNAME, RecordType::MX, RecordType::TXT, RecordType::SRV];

fuzz_target!(|bytes: &[u8]| {
    let Some((first, bytes)) = bytes.split_first() else { return };
    let kind = KINDS[usize::from(*first & 0x7f) % KINDS.len()];
    let dnssec_ok = *first & 0x80 != 0;
    let Some(believed) = judged(bytes, kind.into(), dnssec_ok) else { return };
    assert!(believed.lifetime <= 86_400, "{believed:?}");

    // Every record leads from the question to the answer, or says for how long there is none.
    let mut names = vec![Name::from_ascii("www.example.org.").unwrap()];
    for record in &believed.records {
        if let (RData::CNAME(target), true) = (&record.data, names.contains(&record.name)) {
            names.push(target.0.clone());
        }
    }
    for record in &believed.records {
        assert!(record.ttl <= 86_400, "{record:?}");
        let answers = names.contains(&record.name) && matches!(record.record_type(), RecordType::CNAME | RecordType::RRSIG);
        let asked = names.contains(&record.name) && record.record_type() == kind;
        let proof = matches!(
            record.record_type(),
            RecordType::SOA | RecordType::NSEC | RecordType::NSEC3 | RecordType::RRSIG | RecordType::Unknown(39)
        );
        assert!(answers || asked || proof, "{record:?} in {names:?}");
        assert!(dnssec_ok || !matches!(record.record_type(), RecordType::NSEC | RecordType::NSEC3), "{record:?}");
    }

    let Some(kept) = believed.kept else { return };
    let kept = Message::from_vec(&kept).expect("what is kept is well formed");
    let records: Vec<_> = kept.answers.iter().chain(&kept.authorities).collect();
    assert_eq!(records.len(), believed.records.len());
    let age = believed.lifetime / 2;
    for (told, record) in records.into_iter().zip(&believed.records) {
        assert_eq!((&told.name, &told.data), (&record.name, &record.data));
        assert_eq!(told.ttl, record.ttl.saturating_sub(age));
    }
});
