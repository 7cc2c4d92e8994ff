//! What has to be written so that etcd has a host's keys as they should be, in transactions that etcd takes.

use std::collections::BTreeMap;

use etcd::{OPS_MAX, Op};

/// Most bytes of keys and values in a transaction; etcd takes 1.5 MiB by default, and some more is around them.
const BYTES_MAX: usize = 1 << 20;

/// A value and the lease with which it goes.
pub(super) type Leased = (Vec<u8>, i64);

/// The operations that make `there` what is wanted, each value with this lease; in as few lists as are allowed.
///
/// Each list leaves room for one more operation, the host's own.
pub(super) fn plan(there: &BTreeMap<Vec<u8>, Leased>, wanted: &BTreeMap<Vec<u8>, Vec<u8>>, lease: i64) -> Vec<Vec<Op>> {
    let gone = there.keys().filter(|key| !wanted.contains_key(*key)).map(|key| Op::Delete(key.clone()));
    let stays =
        |key: &Vec<u8>, value: &Vec<u8>| there.get(key).is_some_and(|(own, with)| own == value && *with == lease);
    let put = |(key, value): (&Vec<u8>, &Vec<u8>)| Op::Put { key: key.clone(), value: value.clone(), lease };
    // What goes comes first: a container that moved to another key is then never there twice.
    let ops = gone.chain(wanted.iter().filter(|(key, value)| !stays(key, value)).map(put));
    let mut lists: Vec<Vec<Op>> = Vec::new();
    let mut bytes = 0;
    for op in ops {
        let size = match &op {
            Op::Put { key, value, .. } => key.len() + value.len(),
            Op::Delete(key) | Op::Get(key) => key.len(),
        };
        bytes += size;
        match lists.last_mut() {
            Some(list) if list.len() < OPS_MAX - 1 && bytes <= BYTES_MAX => list.push(op),
            _ => {
                lists.push(vec![op]);
                bytes = size;
            }
        }
    }
    lists
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(entries: &[(&str, &str)]) -> BTreeMap<Vec<u8>, Vec<u8>> {
        entries.iter().map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
    }

    fn there(entries: &[(&str, &str, i64)]) -> BTreeMap<Vec<u8>, Leased> {
        entries
            .iter()
            .map(|(key, value, lease)| (key.as_bytes().to_vec(), (value.as_bytes().to_vec(), *lease)))
            .collect()
    }

    #[test]
    fn only_what_differs_is_written() {
        let there = there(&[("a", "1", 7), ("b", "1", 7), ("c", "1", 6), ("d", "1", 7)]);
        let lists = plan(&there, &wanted(&[("a", "1"), ("b", "2"), ("c", "1"), ("e", "1")]), 7);
        let put = |key: &str, value: &str| Op::Put { key: key.into(), value: value.into(), lease: 7 };
        assert_eq!(lists, [vec![Op::Delete(b"d".to_vec()), put("b", "2"), put("c", "1"), put("e", "1")]]);
        assert!(plan(&BTreeMap::new(), &BTreeMap::new(), 7).is_empty());
    }

    #[test]
    fn no_list_is_longer_than_etcd_takes() {
        let many: BTreeMap<_, _> = (0..250_u32).map(|number| (number.to_be_bytes().to_vec(), b"x".to_vec())).collect();
        let lengths = |wanted| plan(&BTreeMap::new(), wanted, 1).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lengths(&many), [99, 99, 52]);
        let large: BTreeMap<_, _> =
            (0..3_u32).map(|number| (number.to_be_bytes().to_vec(), vec![0; 600 << 10])).collect();
        assert_eq!(lengths(&large), [1, 1, 1]);
    }
}
