//! A list that nearly always has one element, which then needs no place of its own in memory.

use std::ops::Deref;

/// A list that nearly always has one element.
#[derive(Clone, Debug)]
pub(crate) enum Few<T> {
    /// One.
    One(T),
    /// None, or more than one.
    Many(Vec<T>),
}

impl<T> Few<T> {
    /// Appends an element.
    pub(crate) fn push(&mut self, value: T) {
        *self = match std::mem::take(self) {
            Self::Many(list) if list.is_empty() => Self::One(value),
            Self::Many(mut list) => {
                list.push(value);
                Self::Many(list)
            }
            Self::One(first) => Self::Many(vec![first, value]),
        };
    }

    /// Appends elements.
    pub(crate) fn extend(&mut self, values: &Self)
    where
        T: Clone,
    {
        values.iter().for_each(|value| self.push(value.clone()));
    }

    /// Adds an element to those in order, unless it is there.
    pub(crate) fn add(&mut self, value: &T)
    where
        T: Ord + Clone,
    {
        if self.is_empty() {
            *self = Self::One(value.clone());
        } else if let Err(at) = self.binary_search(value) {
            let mut list: Vec<T> = std::mem::take(self).into_iter().collect();
            list.insert(at, value.clone());
            *self = list.into_iter().collect();
        }
    }

    /// Takes an element away.
    pub(crate) fn take(&mut self, value: &T)
    where
        T: PartialEq,
    {
        self.retain(|known| known != value);
    }

    /// The elements, to be changed.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        match self {
            Self::One(value) => std::slice::from_mut(value),
            Self::Many(list) => list,
        }
    }

    /// Leaves out what does not fit.
    pub(crate) fn retain(&mut self, fits: impl FnMut(&T) -> bool) {
        *self = std::mem::take(self).into_iter().filter(fits).collect();
    }

    fn into_iter(self) -> impl Iterator<Item = T> {
        let (one, many) = match self {
            Self::One(value) => (Some(value), Vec::new()),
            Self::Many(list) => (None, list),
        };
        one.into_iter().chain(many)
    }
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Many(list) => list,
        }
    }
}

impl<T: PartialEq> PartialEq for Few<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut few = Self::default();
        for value in values {
            few.push(value);
        }
        few
    }
}

impl<'a, T> IntoIterator for &'a Few<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
