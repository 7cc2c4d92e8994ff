//! Measuring by turns, and what the turns say together.
//!
//! The machine is not the same from one second to the next. So the reference runs between all others, and what is told is
//! the median of the ratios of neighbours, with the least and the greatest, never a ratio of figures from afar.

use std::time::Duration;

use crate::Failure;

/// What one run found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    /// Processor time of the server for one operation, in µs.
    pub(crate) cost: f64,
    /// Operations in a second.
    pub(crate) rate: f64,
    /// Time until the answer in µs: median and 99th of 100; unknown for some generators.
    pub(crate) latency: Option<(f64, f64)>,
    /// Operations that came to nothing, in words; empty when there were none.
    pub(crate) trouble: String,
}

impl Sample {
    pub(crate) fn new(cpu: Duration, operations: u64, elapsed: Duration) -> Self {
        let count = f64::from(u32::try_from(operations).unwrap_or(u32::MAX));
        Self {
            cost: cpu.as_secs_f64() * 1e6 / count.max(1.0),
            rate: count / elapsed.as_secs_f64(),
            trouble: if operations == 0 { "nothing was answered".to_owned() } else { String::new() },
            ..Self::default()
        }
    }
}

/// Something that can be measured again and again.
pub(crate) struct Subject<'a> {
    pub(crate) name: String,
    run: Box<dyn FnMut() -> Result<Sample, Failure> + 'a>,
}

impl<'a> Subject<'a> {
    pub(crate) fn new(name: impl Into<String>, run: impl FnMut() -> Result<Sample, Failure> + 'a) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }
}

/// What all runs of one subject found.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) name: String,
    /// The median of each figure.
    pub(crate) typical: Sample,
    /// Its cost, divided by the mean of those of the reference before and after.
    pub(crate) ratio: Spread,
    /// The same for its median latency and for its 99th of 100.
    pub(crate) latency_ratio: Option<(Spread, Spread)>,
}

/// A median with the least and the greatest.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let middle = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(at(middle.wrapping_sub(1)), at(middle))
        } else {
            at(middle)
        };
        Self { median, min: at(0), max: at(values.len().wrapping_sub(1)) }
    }

    /// The other way round: what is twice as much is then half as much.
    pub(crate) fn inverse(self) -> Self {
        Self { median: 1.0 / self.median, min: 1.0 / self.max, max: 1.0 / self.min }
    }
}

/// Runs `reference` before and after each of `others`, `rounds` times; its own figures come first.
pub(crate) fn measure(
    mut reference: Subject<'_>,
    mut others: Vec<Subject<'_>>,
    rounds: usize,
) -> Result<Vec<Measured>, Failure> {
    let mut references = vec![(reference.run)()?];
    let mut samples = vec![Vec::new(); others.len()];
    for _ in 0..rounds {
        for (other, samples) in others.iter_mut().zip(&mut samples) {
            let sample = (other.run)().map_err(|failure| format!("{}: {failure}", other.name))?;
            samples.push((references.len() - 1, sample));
            references.push((reference.run)()?);
        }
        if others.is_empty() {
            references.push((reference.run)()?);
        }
    }
    let own = Measured {
        name: reference.name,
        typical: typical(&references),
        ratio: Spread { median: 1.0, min: 1.0, max: 1.0 },
        latency_ratio: None,
    };
    let others = others.into_iter().zip(samples).map(|(other, samples)| {
        let to_reference = |figure: fn(&Sample) -> f64| {
            Spread::of(samples.iter().map(|(before, sample)| {
                figure(sample) / f64::midpoint(figure(&references[*before]), figure(&references[before + 1]))
            }))
        };
        let has_latency =
            references.iter().chain(samples.iter().map(|(_, sample)| sample)).all(|s| s.latency.is_some());
        let latency_ratio = has_latency.then(|| {
            (
                to_reference(|sample| sample.latency.unwrap_or_default().0),
                to_reference(|sample| sample.latency.unwrap_or_default().1),
            )
        });
        let ratio = to_reference(|sample| sample.cost);
        let samples: Vec<Sample> = samples.into_iter().map(|(_, sample)| sample).collect();
        Measured { name: other.name, typical: typical(&samples), ratio, latency_ratio }
    });
    Ok(std::iter::once(own).chain(others).collect())
}

fn typical(samples: &[Sample]) -> Sample {
    let median = |figure: fn(&Sample) -> f64| Spread::of(samples.iter().map(figure)).median;
    let latency = samples.iter().all(|sample| sample.latency.is_some()).then(|| {
        (median(|sample| sample.latency.unwrap_or_default().0), median(|sample| sample.latency.unwrap_or_default().1))
    });
    let trouble = samples.iter().find(|sample| !sample.trouble.is_empty());
    Sample {
        cost: median(|sample| sample.cost),
        rate: median(|sample| sample.rate),
        latency,
        trouble: trouble.map(|sample| sample.trouble.clone()).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn middle_of_values_is_told_with_their_ends() {
        for (values, median, min, max) in
            [(&[3.0][..], 3.0, 3.0, 3.0), (&[4.0, 1.0, 2.0], 2.0, 1.0, 4.0), (&[4.0, 1.0, 2.0, 3.0], 2.5, 1.0, 4.0)]
        {
            assert_eq!(Spread::of(values.iter().copied()), Spread { median, min, max });
        }
        assert!(Spread::of([]).median.is_nan());
        assert_eq!(Spread { median: 2.0, min: 1.0, max: 4.0 }.inverse(), Spread { median: 0.5, min: 0.25, max: 1.0 });
    }

    #[test]
    fn drift_of_the_machine_does_not_show_in_ratios() {
        // Everything gets slower by a tenth with every run.
        let now = std::cell::Cell::new(1.0);
        let costing = |factor: f64| {
            let now = &now;
            move || {
                now.set(now.get() * 1.1);
                Ok(Sample { cost: factor * now.get(), ..Sample::default() })
            }
        };
        let others = vec![Subject::new("half", costing(0.5)), Subject::new("double", costing(2.0))];
        let measured = measure(Subject::new("reference", costing(1.0)), others, 5).unwrap();
        for (measured, expected) in measured.iter().zip([1.0, 0.5, 2.0]) {
            assert!((measured.ratio.median / expected - 1.0).abs() < 0.01, "{measured:?}");
            assert!(measured.ratio.min <= measured.ratio.median && measured.ratio.median <= measured.ratio.max);
        }
    }
}
