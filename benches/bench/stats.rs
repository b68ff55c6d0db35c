//! Medians and ratios.

use std::time::Duration;

/// One figure per round.
#[derive(Clone, Default)]
pub struct Series(Vec<f64>);

impl Series {
    /// For a figure that is taken once.
    pub fn one(value: f64) -> Self {
        Self(vec![value])
    }

    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    pub fn rounds(&self) -> &[f64] {
        &self.0
    }

    pub fn median(&self) -> f64 {
        median(&self.0)
    }

    pub fn low(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    pub fn high(&self) -> f64 {
        self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    /// In another unit.
    pub fn scaled(&self, factor: f64) -> Self {
        Self(self.0.iter().map(|value| value * factor).collect())
    }

    /// Round by round, so that both sides have had the same machine.
    pub fn over(&self, base: &Self) -> Self {
        self.with(base, |own, base| own / base)
    }

    /// Round by round, too.
    pub fn less(&self, base: &Self) -> Self {
        self.with(base, |own, base| own - base)
    }

    fn with(&self, base: &Self, of: impl Fn(f64, f64) -> f64) -> Self {
        Self(self.0.iter().zip(&base.0).map(|(own, base)| of(*own, *base)).collect())
    }
}

pub fn median(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// The smallest value that at least `percent` of all values do not exceed.
pub fn percentile(values: &[f64], percent: usize) -> f64 {
    let sorted = sorted(values);
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Random pauses, so that nothing falls into step with a timer. Same sequence in every run.
pub struct Pauses(u64);

impl Pauses {
    pub fn new() -> Self {
        Self(88_172_645_463_325_252)
    }

    /// 1 to 3 ms: so long lasts a hold in a hand-off.
    pub fn hold(&mut self) -> Duration {
        self.between(Duration::from_millis(1), Duration::from_millis(3))
    }

    pub fn between(&mut self, low: Duration, high: Duration) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let range = u64::try_from((high - low).as_nanos()).unwrap_or(u64::MAX).max(1);
        low + Duration::from_nanos(self.0 % range)
    }
}
