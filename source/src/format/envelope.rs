//! The predecessor's saved answers: `{"Version", "Data"}`, where Data is base64 of raw deflate of
//! concatenated objects (spec/metadata.md section 8).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::{Decompress, FlushDecompress, Status};
use model::objects::Credential;
use model::{Defect, Map, Snapshot, Text, Value, objects};

use super::{FormatError, json};

/// Most octets that Data may unfold to: about half a million containers.
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
    let found: Vec<Map> = json::objects(&unpack(&packed)?).map_err(|error| within(&error))?;
    let (mut snapshot, defects, credentials) = objects::read(found);
    if snapshot.source_version.is_empty() {
        snapshot.source_version = envelope.version.clone();
    }
    if snapshot.is_empty() {
        return Err(FormatError::new("the saved answers hold not one entity"));
    }
    Ok((snapshot, defects, credentials))
}

fn unpack(packed: &[u8]) -> Result<Vec<u8>, FormatError> {
    /// First guess of the packing ratio; the buffer doubles from there.
    const USUAL_RATIO: usize = 8;
    let mut inflate = Decompress::new(false);
    let mut unpacked = Vec::with_capacity(packed.len().saturating_mul(USUAL_RATIO).clamp(1024, UNPACKED_MAX));
    loop {
        let consumed = usize::try_from(inflate.total_in()).unwrap_or(usize::MAX);
        let rest = packed.get(consumed..).unwrap_or_default();
        let before = unpacked.len();
        match inflate.decompress_vec(rest, &mut unpacked, FlushDecompress::None).map_err(|error| within(&error))? {
            Status::StreamEnd => return Ok(unpacked),
            Status::Ok | Status::BufError if unpacked.len() == unpacked.capacity() => {
                if unpacked.len() >= UNPACKED_MAX {
                    return Err(FormatError::new(format!("Data unfolds to more than {UNPACKED_MAX} octets")));
                }
                unpacked.reserve(unpacked.len());
            }
            Status::Ok if unpacked.len() > before => {}
            // The predecessor took what was there; the entities behind the cut were gone.
            Status::Ok | Status::BufError => return Err(FormatError::new("Data is cut off")),
        }
    }
}

fn within(error: &impl std::fmt::Display) -> FormatError {
    FormatError::new(format!("in Data: {error}"))
}
