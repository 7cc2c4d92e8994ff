//! What an invitation brings, as it stands in its file.

use etcd::Secret;
use process::Failure;

use super::super::token::{self, Token};

/// What texts in UTF-16 begin with.
const UTF_16: [[u8; 2]; 2] = [[0xff, 0xfe], [0xfe, 0xff]];

/// What a PEM block begins with.
const BLOCK: &str = "-----BEGIN ";

/// Longest label of one that is shown, in bytes.
const LABEL_MAX: usize = 40;

/// What an invitation brings.
pub(super) struct Invitation {
    pub(super) token: Token,
    /// A certificate and its key, where etcd asks for one.
    pub(super) identity: Option<(String, Secret)>,
}

impl Invitation {
    /// From the contents of its file, or the token alone.
    pub(super) fn read(bytes: Vec<u8>) -> Result<Self, Failure> {
        if UTF_16.iter().any(|mark| bytes.starts_with(mark)) {
            return Err("it is UTF-16, as > of Windows PowerShell writes it: copy the file itself".into());
        }
        let text =
            String::from_utf8(bytes).map_err(|_| "it is not a text in UTF-8: copy the file again, as a whole")?;
        let token = Token::of_file(&text)?;
        let blocks = blocks_of(&text)?;
        let identity = match (pem_of(&blocks, "CERTIFICATE"), pem_of(&blocks, "PRIVATE KEY")) {
            (Some(certificate), Some(key)) => Some((certificate, Secret(key))),
            (None, None) => None,
            (Some(_), None) => return Err(half("a certificate and no key")),
            (None, Some(_)) => return Err(half("a key and no certificate")),
        };
        Ok(Self { token, identity })
    }
}

/// An invitation that was not copied as a whole.
fn half(what: &str) -> Failure {
    format!("the invitation has {what}: copy the file again, as a whole").into()
}

/// The PEM blocks of an invitation.
fn blocks_of(text: &str) -> Result<Vec<pem::Pem>, Failure> {
    let block = |(index, rest): (usize, &str)| {
        pem::parse(format!("{BLOCK}{rest}")).map_err(|error| {
            let label = rest.split("-----").next().unwrap_or_default();
            // Anything else might be a part of a key.
            let is_label =
                label.len() < LABEL_MAX && label.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b' ');
            let label = if is_label { format!(" ({label})") } else { String::new() };
            let number = index + 1;
            format!("block {number}{label} of the invitation cannot be read ({error}): copy the file again, as a whole")
                .into()
        })
    };
    text.split(BLOCK).skip(1).enumerate().map(block).collect()
}

/// The first PEM block whose label ends so.
fn pem_of(blocks: &[pem::Pem], label: &str) -> Option<String> {
    let block = blocks.iter().find(|block| block.tag().ends_with(label));
    block.map(|block| pem::encode_config(block, token::PEM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_stand_behind_the_token_in_a_file() {
        let text = "# a\nberth1.x\n-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n\
                    -----BEGIN PRIVATE KEY-----\nBBBB\n-----END PRIVATE KEY-----\n";
        let blocks = blocks_of(text).unwrap();
        assert_eq!(
            pem_of(&blocks, "CERTIFICATE").as_deref(),
            Some("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        );
        assert!(pem_of(&blocks, "PRIVATE KEY").is_some_and(|key| key.contains("BBBB") && !key.contains("AAAA")));
        assert_eq!(blocks_of("berth1.x").unwrap(), []);
    }

    #[test]
    fn what_cannot_be_read_of_an_invitation_is_named() {
        let certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (key, problem) in [
            (
                "-----BEGIN PRIVATE KEY-----\nBB!B\n-----END PRIVATE KEY-----\n",
                "block 2 (PRIVATE KEY) of the invitation",
            ),
            ("-----BEGIN PRIVATE KEY-----\nBBBB\n", "block 2 (PRIVATE KEY) of the invitation"),
            ("-----BEGIN PRIVATE KEY-----\nBBBB\n-----END X-----\n", "block 2 (PRIVATE KEY) of the invitation"),
            ("-----BEGIN MIGHsecret\n", "block 2 of the invitation"),
        ] {
            let refused = blocks_of(&format!("berth1.x\n{certificate}{key}")).unwrap_err().to_string();
            assert!(refused.starts_with(problem) && !refused.contains("secret"), "{refused}");
        }
        for (bytes, problem) in [
            (b"\xff\xfeb\0e\0".to_vec(), "UTF-16"),
            (b"berth1.\xff".to_vec(), "not a text in UTF-8"),
            (b"".to_vec(), "it is empty"),
        ] {
            assert!(Invitation::read(bytes).err().unwrap().to_string().contains(problem));
        }
    }
}
