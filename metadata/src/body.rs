//! Bodies of responses: in one piece, or as it comes.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc::Receiver;

use crate::wire::Sending;

/// The body of a response.
#[derive(Debug)]
pub(crate) enum Content {
    /// One piece, of a length that is announced or not.
    Whole {
        /// The piece.
        octets: Bytes,
        /// Whether its length is announced.
        sized: bool,
    },
    /// Pieces that are there, of a length that is not announced.
    Pieces { pieces: std::vec::IntoIter<Bytes>, _sending: Sending },
    /// Pieces as they come; ends when the sender is dropped.
    Stream { pieces: Receiver<Bytes>, _sending: Sending },
}

impl Body for Content {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Whole { octets, .. } => {
                let octets = std::mem::take(octets);
                Poll::Ready((!octets.is_empty()).then(|| Ok(Frame::data(octets))))
            }
            Self::Pieces { pieces, .. } => {
                Poll::Ready(pieces.find(|octets| !octets.is_empty()).map(|octets| Ok(Frame::data(octets))))
            }
            Self::Stream { pieces, .. } => {
                pieces.poll_recv(cx).map(|piece| piece.map(|octets| Ok(Frame::data(octets))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole { octets, .. } if octets.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole { octets, sized: true } => {
                SizeHint::with_exact(u64::try_from(octets.len()).unwrap_or(u64::MAX))
            }
            _ => SizeHint::default(),
        }
    }
}
