//! Pieces of bodies that are written once and sent to all clients, as long as the view is the same.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::OnceCell;

use crate::body::parts::Piece;

/// Most bytes that are cached for one view; the whole tree of 1,000 containers has 2 MB in each version and format.
///
/// What does not fit is rendered for each request.
const CACHED_BYTES_MAX: usize = 64 << 20;

/// The pieces that were asked for.
///
/// They belong to the view, so that they go when it goes, and say nothing that it does not say: a memory of work done,
/// not a state.
#[derive(Default)]
pub(crate) struct Renderings(Mutex<Cache>);

#[derive(Default)]
struct Cache {
    pieces: HashMap<Piece, Arc<OnceCell<Bytes>>>,
    bytes: usize,
}

impl Renderings {
    /// The piece, rendered by `write` if it is not cached; concurrent callers wait for one rendering.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time; then another waiting caller renders it.
    pub(crate) async fn get<E>(
        &self,
        piece: &Piece,
        write: impl AsyncFnOnce() -> Result<Bytes, E>,
    ) -> Result<Bytes, E> {
        let cell = self.lock().pieces.entry(piece.clone()).or_default().clone();
        let written = cell.get_or_try_init(async || {
            let bytes = write().await?;
            self.keep(piece, bytes.len());
            Ok(bytes)
        });
        written.await.cloned()
    }

    /// Counts a piece that was written, or lets go of it.
    fn keep(&self, piece: &Piece, bytes: usize) {
        let mut cache = self.lock();
        if cache.bytes + bytes > CACHED_BYTES_MAX {
            cache.pieces.remove(piece);
        } else {
            cache.bytes += bytes;
        }
    }

    /// Held for a look into the table, never together with another lock and never across an await.
    fn lock(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Renderings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renderings").field("bytes", &self.lock().bytes).finish_non_exhaustive()
    }
}
