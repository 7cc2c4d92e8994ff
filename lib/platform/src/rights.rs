//! Who may change a file or a folder of Windows, read from its security descriptor as text (SDDL).
//!
//! The text is what the system makes of an owner and a list of rights, such as `O:BAD:PAI(A;OICI;FA;;;SY)`: each entry says
//! its kind, how it is inherited, what it allows, and to whom.

#[cfg(windows)]
#[path = "rights/windows.rs"]
mod system;

#[cfg(windows)]
pub(crate) use system::{close_file, create_folder, folder_must_be_own, program_must_be_own};

/// What an access mask allows to do with a file or a folder.
pub(crate) mod mask {
    /// To write a file, or to put files into a folder.
    pub(crate) const WRITE: u32 = 0x2;
    /// To write at a file's end, or to put folders into a folder.
    pub(crate) const APPEND: u32 = 0x4;
    /// To delete or rename whatever a folder has.
    pub(crate) const DELETE_CHILD: u32 = 0x40;
    /// To delete or rename it.
    pub(crate) const DELETE: u32 = 0x1_0000;
    /// To change its rights, or its owner.
    pub(crate) const CHANGE_RIGHTS: u32 = 0xc_0000;
    /// Generic rights, which the system maps to the others.
    pub(crate) const GENERIC_WRITE: u32 = 0x5000_0000;
}

/// Rights by which a file of a service could be replaced or changed.
pub(crate) const OVER_A_FILE: u32 =
    mask::WRITE | mask::APPEND | mask::DELETE | mask::CHANGE_RIGHTS | mask::GENERIC_WRITE;

/// Rights by which a file could be put into a folder, or one of its files replaced: beside a program, a library is enough.
pub(crate) const OVER_A_FOLDER: u32 = OVER_A_FILE | mask::DELETE_CHILD;

/// Rights by which a folder within this one could be replaced: that all users may add folders to a drive, as they may, is no
/// harm.
pub(crate) const OVER_A_PATH: u32 = mask::DELETE | mask::DELETE_CHILD | mask::CHANGE_RIGHTS | 0x1000_0000;

/// The system, its administrators, and what installs Windows; the last four stand for the owner, who is looked at anyway.
const TRUSTED: [&str; 10] = [
    "SY",
    "LA",
    "S-1-5-18",
    "BA",
    "S-1-5-32-544",
    "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464",
    "CO",
    "S-1-3-0",
    "OW",
    "S-1-3-4",
];

/// Names of rights in such texts, two letters each.
const RIGHTS: [(&str, u32); 21] = [
    ("FA", 0x1f_01ff),
    ("FW", 0x12_0116),
    ("FR", 0x12_0089),
    ("FX", 0x12_00a0),
    ("GA", 0x1000_0000),
    ("GW", 0x4000_0000),
    ("GR", 0x8000_0000),
    ("GX", 0x2000_0000),
    ("CC", 0x1),
    ("DC", 0x2),
    ("LC", 0x4),
    ("SW", 0x8),
    ("RP", 0x10),
    ("WP", 0x20),
    ("DT", 0x40),
    ("LO", 0x80),
    ("CR", 0x100),
    ("SD", 0x1_0000),
    ("RC", 0x2_0000),
    ("WD", 0x4_0000),
    ("WO", 0x8_0000),
];

/// Who else than administrators and this user has one of these rights, by the system's short name or number; `None` if
/// nobody has. What is not understood counts as a right.
pub(crate) fn stranger<'t>(text: &'t str, rights: u32, own: &str) -> Option<&'t str> {
    let is_trusted = |who: &str| TRUSTED.contains(&who) || who == own;
    let (owner, list) = match text.split_once("D:") {
        Some((before, list)) => (before, Some(list)),
        None => (text, None),
    };
    let owner = owner.strip_prefix("O:").unwrap_or_default();
    let owner = owner.split("G:").next().unwrap_or_default();
    if !is_trusted(owner) {
        return Some(if owner.is_empty() { "an unknown owner" } else { owner });
    }
    // Without a list, everybody may do everything.
    let Some(list) = list.filter(|list| !list.starts_with("NO_ACCESS_CONTROL")) else { return Some("WD") };
    let mut entries = list.split(['(', ')']).skip(1).step_by(2);
    entries.find_map(|entry| {
        let mut fields = entry.split(';');
        let (kind, inheritance, mask) = (fields.next()?, fields.next()?, fields.next()?);
        let who = fields.nth(2).unwrap_or("an unknown user");
        // Entries that deny only take away; those that are for what comes into the folder are looked at there.
        let is_allowed = !kind.starts_with(['D', 'O']) || kind == "OA";
        let is_inherit_only = inheritance.as_bytes().chunks(2).any(|flag| flag == b"IO");
        let may = is_allowed && !is_inherit_only && bits(mask) & rights != 0;
        (may && !is_trusted(who)).then_some(who)
    })
}

/// The bits of a mask: names of rights, or a number.
fn bits(text: &str) -> u32 {
    if let Some(digits) = text.strip_prefix("0x") {
        return u32::from_str_radix(digits, 16).unwrap_or(u32::MAX);
    }
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return u32::MAX;
    }
    let named =
        |at: usize| RIGHTS.iter().find(|(name, _)| *name == &text[at..at + 2]).map_or(u32::MAX, |(_, bits)| *bits);
    (0..text.len()).step_by(2).fold(0, |all, at| all | named(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: &str = "S-1-5-21-1-2-3-1001";

    #[test]
    fn nobody_but_administrators_may_change_what_a_service_trusts() {
        let program_files = "O:S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464D:PAI(A;;FA;;;SY)(A;;FA;;;BA)\
                             (A;OICIIO;GA;;;CO)(A;;0x1200a9;;;BU)";
        // As folders are that are made on a drive, and the drive itself.
        let inherited = "O:BAD:AI(A;OICIID;FA;;;BA)(A;OICIID;FA;;;SY)(A;OICIID;0x1200a9;;;BU)(A;ID;0x1301bf;;;AU)\
                         (A;OICIIOID;SDGXGWGR;;;AU)";
        let drive =
            "O:SYD:PAI(A;OICI;FA;;;BA)(A;OICI;FA;;;SY)(A;OICI;0x1200a9;;;BU)(A;;LC;;;AU)(A;OICIIO;SDGXGWGR;;;AU)";
        // Below ProgramData, where users may make files.
        let program_data = "O:BAD:AI(A;OICIID;FA;;;SY)(A;OICIID;FA;;;BA)(A;OICIIOID;GA;;;CO)(A;OICIID;0x1200a9;;;BU)\
                            (A;CIID;DCLCRPCR;;;BU)";
        let own = format!("O:{USER}D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;{USER})");
        for (text, rights, expected) in [
            (program_files, OVER_A_FOLDER, None),
            (inherited, OVER_A_FOLDER, Some("AU")),
            (inherited, OVER_A_PATH, Some("AU")),
            (drive, OVER_A_PATH, None),
            (drive, OVER_A_FOLDER, Some("AU")),
            (program_data, OVER_A_FOLDER, Some("BU")),
            (program_data, OVER_A_PATH, None),
            (&own, OVER_A_FOLDER, None),
            ("O:S-1-5-21-9D:P(A;;FA;;;SY)", OVER_A_FILE, Some("S-1-5-21-9")),
            ("O:BAG:SYD:P(A;;FA;;;SY)(D;;FA;;;WD)", OVER_A_FILE, None),
            ("O:BAD:(A;;FW;;;WD)", OVER_A_FILE, Some("WD")),
            // No list is none that forbids anything, and what is not known may be anything.
            ("O:BA", OVER_A_FILE, Some("WD")),
            ("O:BAD:NO_ACCESS_CONTROL", OVER_A_FILE, Some("WD")),
            ("O:BAD:(A;;ZZ;;;WD)", OVER_A_FILE, Some("WD")),
            ("O:BAD:(A;;0x;;;WD)", OVER_A_FILE, Some("WD")),
            ("D:(A;;FA;;;SY)", OVER_A_FILE, Some("an unknown owner")),
            ("", OVER_A_FILE, Some("an unknown owner")),
        ] {
            assert_eq!(stranger(text, rights, USER), expected, "{text} {rights:x}");
        }
    }
}
