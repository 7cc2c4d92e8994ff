//! Labels that came with a container's image: they say nothing about where the container belongs. One that does say so counts
//! only if it was [given when the container was created](is_given).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use engine::{InImage, is_given};
use model::{Defect, Fingerprint, Text};

use super::labels::is_membership_label;
use super::names::{COMPOSE_NUMBER, COMPOSE_ONEOFF, COMPOSE_PROJECT, COMPOSE_SERVICE};

/// Most images whose labels are remembered. A host runs a few dozen; beyond this the memory begins again.
const IMAGES_MAX: usize = 1024;

/// Most membership labels that are remembered of an image: 256 KiB of fingerprints. An honest one has a dozen.
const REMEMBERED_MAX: usize = 16 << 10;

/// The fingerprint of a service's configuration, which compose gives every container that it creates.
const COMPOSE_HASH: &str = "com.docker.compose.config-hash";

/// Which version of compose it was.
const COMPOSE_VERSION: &str = "com.docker.compose.version";

/// What compose gives a container when it creates one, and never gives an image that it builds.
const COMPOSE_MARKS: [&str; 2] = [COMPOSE_HASH, COMPOSE_NUMBER];

/// Labels that compose gives every container it creates, in place of those of the image.
const COMPOSE_GIVES: [&str; 6] =
    [COMPOSE_PROJECT, COMPOSE_SERVICE, COMPOSE_ONEOFF, COMPOSE_VERSION, COMPOSE_HASH, COMPOSE_NUMBER];

/// The membership labels of a container's image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Baked {
    /// It has these: fingerprints of keys and values. Who makes an image that has one of another label strips only its own
    /// containers of that.
    Known(Arc<HashSet<Fingerprint>>),
    /// It may have any; why that is not known.
    Unknown(Text),
}

impl Baked {
    /// An image without labels that say where a container belongs.
    pub(super) fn nothing() -> Self {
        Self::Known(Arc::default())
    }

    /// The labels of an image.
    pub(super) fn of(labels: Option<&HashMap<String, String>>) -> Self {
        let membership = labels.into_iter().flatten().filter(|(key, _)| is_membership_label(key));
        let known: HashSet<_> =
            membership.map(|(key, value)| fingerprint(key, value)).take(REMEMBERED_MAX + 1).collect();
        if known.len() > REMEMBERED_MAX {
            return Self::Unknown("it has too many labels".into());
        }
        Self::Known(Arc::new(known))
    }

    /// Whether a label may have come with the image. Only those that say where a container belongs are known.
    fn has(&self, key: &str, value: &str) -> bool {
        let in_image = match self {
            Self::Known(labels) => InImage::known(labels.contains(&fingerprint(key, value)).then_some(value)),
            Self::Unknown(_) if is_membership_label(key) => InImage::Unknown,
            Self::Unknown(_) => InImage::Absent,
        };
        !is_given(value, in_image)
    }
}

fn fingerprint(key: &str, value: &str) -> Fingerprint {
    Fingerprint::of(&(key, value))
}

/// What is remembered of images until all is read again, by their ids: what an id stands for never changes, but may be removed.
#[derive(Clone, Debug, Default)]
pub(super) struct Images(Arc<HashMap<Text, Baked>>);

impl Images {
    /// What is known of an image.
    pub(super) fn get(&self, image: &str) -> Option<&Baked> {
        self.0.get(image)
    }

    /// Takes down what an image has.
    pub(super) fn learn(&mut self, image: Text, baked: Baked) {
        let images = Arc::make_mut(&mut self.0);
        if images.len() >= IMAGES_MAX && !images.contains_key(&image) {
            images.clear();
        }
        images.insert(image, baked);
    }
}

/// The labels without those that count as absent; what is left out becomes a defect of the container at `path`.
///
/// `docker compose build` gives an image the project and the service as labels, and `up` gives the container the same
/// ones. That they are equal therefore says nothing there. But a container that compose created has a mark that compose
/// gives no image, and that the image does not have all the same: it was given at creation, so the project and the
/// service were too.
pub(super) fn without_baked<'l>(
    labels: impl IntoIterator<Item = (&'l str, &'l str)>,
    baked: &Baked,
    path: &str,
    defects: &mut Vec<Defect>,
) -> Vec<(&'l str, &'l str)> {
    let labels: Vec<_> = labels.into_iter().collect();
    let by_compose = labels.iter().any(|(key, value)| COMPOSE_MARKS.contains(key) && !baked.has(key, value));
    let given = |key: &str, value: &str| !baked.has(key, value) || (by_compose && COMPOSE_GIVES.contains(&key));
    let (given, left): (Vec<_>, Vec<_>) = labels.into_iter().partition(|(key, value)| given(key, value));
    if let Some((first, _)) = left.iter().min() {
        let start: String = first.chars().take(64).collect();
        let (count, way_out) = (left.len(), "give them at creation (--label) if they are meant");
        let problem = match baked {
            Baked::Known(_) => {
                format!("{count} came with its image and do not count, such as {start:?}: {way_out}")
            }
            Baked::Unknown(why) => format!(
                "{count} may have come with its image and do not count, such as {start:?}: the image's labels are not known ({why})"
            ),
        };
        defects.push(Defect::ignored(format!("{path}/labels"), problem));
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROJECT: (&str, &str) = (COMPOSE_PROJECT, "data");
    const SERVICE: (&str, &str) = (COMPOSE_SERVICE, "db");
    const HASH: (&str, &str) = (COMPOSE_HASH, "8f3a");
    const NUMBER: (&str, &str) = (COMPOSE_NUMBER, "1");
    const DEPENDS: (&str, &str) = ("com.docker.compose.depends_on", "secrets");
    const PLACEMENT: (&str, &str) = ("io.berth.placement", "web-1");
    const OTHER: (&str, &str) = ("maintainer", "me");

    /// The keys that are left of `labels` beside an image that has `image`, and whether something was left out.
    fn check(labels: &[(&str, &str)], image: &[(&str, &str)], kept: &[(&str, &str)]) {
        let image = image.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let (baked, mut defects) = (Baked::of(Some(&image)), Vec::new());
        assert_eq!(without_baked(labels.iter().copied(), &baked, "containers/a", &mut defects), kept, "{labels:?}");
        assert_eq!(defects.len(), usize::from(kept.len() < labels.len()), "{defects:?}");
    }

    #[test]
    fn what_an_image_brings_makes_its_container_a_member_of_nothing() {
        check(&[PROJECT, SERVICE, OTHER], &[PROJECT, SERVICE, OTHER], &[OTHER]);
        // An image with everything that compose gives, as `docker commit` of a container makes it.
        let all = [PROJECT, SERVICE, HASH, NUMBER];
        check(&all, &all, &[]);
        check(&[PLACEMENT, OTHER], &[PLACEMENT], &[OTHER]);
        // A label given at creation does not bring the others in.
        let own = (COMPOSE_PROJECT, "mine");
        check(&[own, SERVICE], &[PROJECT, SERVICE], &[own]);
    }

    #[test]
    fn what_compose_creates_of_what_it_built_is_a_member() {
        let created = [PROJECT, SERVICE, HASH, NUMBER];
        check(&created, &[PROJECT, SERVICE], &created);
        // The image is a copy of an older container: compose gives another fingerprint of the configuration.
        check(&created, &[PROJECT, SERVICE, (COMPOSE_HASH, "0000"), NUMBER], &created);
        // What compose does not give each container still does not come from an image.
        check(&[PROJECT, SERVICE, HASH, NUMBER, DEPENDS], &[PROJECT, SERVICE, DEPENDS], &created);
        // Given at creation by hand, without an image that has them.
        check(&[PROJECT, SERVICE], &[OTHER], &[PROJECT, SERVICE]);
    }

    #[test]
    fn of_an_unknown_image_no_telling_label_counts() {
        let mut defects = Vec::new();
        let unknown = Baked::Unknown("it is gone".into());
        let kept = without_baked([PROJECT, SERVICE, HASH, NUMBER, OTHER], &unknown, "containers/a", &mut defects);
        assert_eq!(kept, [OTHER]);
        assert!(defects[0].to_string().contains("it is gone"), "{defects:?}");
        let many = |count| (0..count).map(|number| (format!("io.berth.{number}"), String::new())).collect();
        assert!(matches!(Baked::of(Some(&many(REMEMBERED_MAX + 1))), Baked::Unknown(_)));
    }

    #[test]
    fn no_number_of_an_images_labels_takes_away_those_that_were_given() {
        let many: Vec<_> = (0..5000).map(|number| (format!("io.berth.{number}"), String::new())).collect();
        let image: Vec<_> = many.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let given = [PROJECT, SERVICE, PLACEMENT];
        let all: Vec<_> = given.iter().chain(&image).copied().collect();
        check(&all, &image, &given);
    }

    #[test]
    fn images_are_remembered_within_a_bound() {
        let mut images = Images::default();
        for number in 0..=IMAGES_MAX {
            images.learn(number.to_string().into(), Baked::nothing());
        }
        assert!(images.0.len() <= IMAGES_MAX);
        assert_eq!(images.get(&IMAGES_MAX.to_string()), Some(&Baked::nothing()));
    }
}
