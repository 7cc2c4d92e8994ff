//! Labels that were given when a container was created, apart from those that its image brought.
//!
//! An engine shows the labels of the image among those of the container, and the author of an image needs no right on any host.

/// What a container's image has under the name of one of the container's labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InImage<'v> {
    /// This value.
    Value(&'v str),
    /// No such label.
    Absent,
    /// The engine does not say, or has the image no more.
    Unknown,
}

impl<'v> InImage<'v> {
    /// What an image whose labels are known has.
    pub fn known(value: Option<&'v str>) -> Self {
        value.map_or(Self::Absent, Self::Value)
    }
}

/// Whether a label with this value was given when the container was created. An equal one of the image looks the same, and an
/// image that is not known may have it.
pub fn is_given(value: &str, in_image: InImage<'_>) -> bool {
    match in_image {
        InImage::Value(own) => own != value,
        InImage::Absent => true,
        InImage::Unknown => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_image_has_or_may_have_was_not_given() {
        for (in_image, expected) in [
            (InImage::known(None), true),
            (InImage::known(Some("other")), true),
            (InImage::known(Some("a")), false),
            (InImage::Unknown, false),
        ] {
            assert_eq!(is_given("a", in_image), expected, "{in_image:?}");
        }
    }
}
