//! The predecessor's saved answers: `{"Version", "Data"}`, where Data is base64 of raw deflate of
//! concatenated objects.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::{Decompress, FlushDecompress, Status};
use model::objects::Credential;
use model::{Defect, Snapshot, Text, Value, objects};

use super::{FormatError, json};

/// Most bytes that Data may unfold to: about half a million containers.
///
/// Deflate packs up to a thousandfold, so without a bound a small file could ask for all memory.
const UNPACKED_MAX: usize = 1 << 30;

/// What the envelope holds, still packed.
pub(super) struct Envelope {
    version: Text,
    data: Text,
}

/// The envelope, when the value is one.
pub(super) fn recognise(value: &Value) -> Option<Envelope> {
    let map = value.as_map()?;
    Some(Envelope { version: map.text("Version")?.clone(), data: map.text("Data")?.clone() })
}

/// The snapshot in an envelope.
pub(super) fn read(envelope: &Envelope) -> Result<(Snapshot, Vec<Defect>, Vec<Credential>), FormatError> {
    let packed = STANDARD.decode(envelope.data.as_bytes()).map_err(|error| within(&error))?;
    let unpacked = unpack(&packed)?;
    let (mut snapshot, defects, credentials) = match std::str::from_utf8(&unpacked).ok().and_then(objects::read_text) {
        Some(read) => read,
        None => objects::read(json::objects(&unpacked).map_err(|error| within(&error))?),
    };
    if snapshot.source_version.is_empty() {
        snapshot.source_version = envelope.version.clone();
    }
    if snapshot.is_empty() {
        return Err(FormatError::new("the saved answers hold not one entity"));
    }
    Ok((snapshot, defects, credentials))
}

fn unpack(packed: &[u8]) -> Result<Vec<u8>, FormatError> {
    /// Bytes that are unpacked at a time: they are still in the processor's cache when they are written for the second
    /// time, which is after they were made zero.
    const STEP: usize = 128 << 10;
    let mut inflate = Decompress::new(false);
    let mut unpacked = Vec::new();
    let position = |total: u64| usize::try_from(total).unwrap_or(usize::MAX);
    loop {
        let (consumed, before) = (position(inflate.total_in()), unpacked.len());
        if before >= UNPACKED_MAX {
            return Err(FormatError::new(format!("Data unfolds to more than {UNPACKED_MAX} bytes")));
        }
        unpacked.resize(before + STEP, 0);
        let (rest, space) = (packed.get(consumed..).unwrap_or_default(), &mut unpacked[before..]);
        let status = inflate.decompress(rest, space, FlushDecompress::None).map_err(|error| within(&error))?;
        unpacked.truncate(position(inflate.total_out()));
        match status {
            Status::StreamEnd => return Ok(unpacked),
            Status::Ok if unpacked.len() > before => {}
            // The predecessor took what was there; the entities behind the cut were gone.
            Status::Ok | Status::BufError => return Err(FormatError::new("Data is cut off")),
        }
    }
}

fn within(error: &impl std::fmt::Display) -> FormatError {
    FormatError::new(format!("in Data: {error}"))
}
