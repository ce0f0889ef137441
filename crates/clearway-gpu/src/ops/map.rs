//! What each element-wise op computes: in f64 for the reference, in WGSL for GPUs, and how its tests see it.
//!
//! Names, inputs and constants are in the op table (`clearway-graph/src/op/map.rs`), the f32 code of the CPU in
//! `cpu/kernels/elementwise.rs`.

use clearway_graph::Map;

/// One element-wise op.
pub(crate) struct MapRow {
    /// The function in f64: of the first element, of the second where there is one, and of the constants.
    pub reference: fn(f64, f64, &[f64]) -> f64,
    /// The function as a WGSL expression of `x`, or of `a` and `b`. Constant `k` is `argf(k)`. Functions of one
    /// number that products use, too, have the name of the op (`kernels/math.wgsl`).
    pub wgsl: &'static str,
    /// Whether the result is the exact one, rounded once.
    #[cfg_attr(
        not(any(test, feature = "testkit")),
        expect(dead_code, reason = "the op suite reads it")
    )]
    pub exact: bool,
    /// Constants in test cases.
    #[cfg_attr(
        not(any(test, feature = "testkit")),
        expect(dead_code, reason = "the op suite reads it")
    )]
    pub usual: &'static [f32],
}

/// Largest slope of silu, which is 1.10, and of gelu.
#[cfg(any(test, feature = "testkit"))]
pub(crate) const STEEPEST: f64 = 1.13;

/// Largest slope of a function of one element, for arguments up to this magnitude: by how much it makes errors
/// larger.
#[cfg(any(test, feature = "testkit"))]
pub(crate) fn slope(map: Map, most: f64) -> Option<f64> {
    match map {
        Map::Silu | Map::Gelu => Some(STEEPEST),
        Map::ReluSquared => Some(2.0 * most),
        Map::Add | Map::Mul | Map::Scale | Map::SoftCap => None,
        Map::SiluMul | Map::GeluMul | Map::ClampedGate => None,
    }
}

/// The row of an op.
pub(crate) fn row(map: Map) -> MapRow {
    use super::reference::elementwise::{clamped_gate, gelu, silu, soft_cap};
    let exact = |reference, wgsl| MapRow { reference, wgsl, exact: true, usual: &[] };
    let near = |reference, wgsl| MapRow { reference, wgsl, exact: false, usual: &[] };
    match map {
        Map::Add => exact(|a, b, _| a + b, "a + b"),
        Map::Mul => exact(|a, b, _| a * b, "a * b"),
        Map::Scale => MapRow { usual: &[0.375], ..exact(|x, _, p| x * p[0], "x * argf(0u)") },
        Map::Silu => near(|x, _, _| silu(x), "silu(x)"),
        Map::Gelu => near(|x, _, _| gelu(x), "gelu(x)"),
        Map::SiluMul => near(|a, b, _| silu(a) * b, "silu(a) * b"),
        Map::GeluMul => near(|a, b, _| gelu(a) * b, "gelu(a) * b"),
        Map::ReluSquared => exact(|x, _, _| if x < 0.0 { 0.0 } else { x * x }, "relu_squared(x)"),
        Map::SoftCap => {
            MapRow { usual: &[30.0], ..near(|x, _, p| soft_cap(x, p[0]), "soft_cap(x, argf(0u))") }
        }
        Map::ClampedGate => MapRow {
            // Below what elements of tests reach.
            usual: &[1.5, 1.702],
            ..near(
                |a, b, p| clamped_gate(a, b, p[0], p[1]),
                "clamped_gate(a, b, argf(0u), argf(1u))",
            )
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements, constants, and what the op makes of them, from tables.
    fn known(map: Map) -> Vec<(f64, f64, &'static [f64], f64)> {
        let e = std::f64::consts::E;
        let (silu_1, gelu_1) = (e / (e + 1.0), 0.841_191_990_608_276_7);
        let tanh_half = 0.462_117_157_260_009_8;
        match map {
            Map::Add => vec![(1.0, 10.0, &[], 11.0)],
            Map::Mul => vec![(3.0, 30.0, &[], 90.0)],
            Map::Scale => vec![(10.0, 0.0, &[0.5], 5.0)],
            Map::Silu => {
                vec![(0.0, 0.0, &[], 0.0), (1.0, 0.0, &[], silu_1), (-1.0, 0.0, &[], silu_1 - 1.0)]
            }
            // 0.5 (1 + tanh(0.7978845608028654 * 1.044715)).
            Map::Gelu => {
                vec![(0.0, 0.0, &[], 0.0), (1.0, 0.0, &[], gelu_1), (-1.0, 0.0, &[], gelu_1 - 1.0)]
            }
            Map::SiluMul => vec![(1.0, 2.0, &[], 2.0 * silu_1)],
            Map::GeluMul => vec![(1.0, 2.0, &[], 2.0 * gelu_1)],
            Map::ReluSquared => vec![(3.0, 0.0, &[], 9.0), (-2.0, 0.0, &[], 0.0)],
            Map::SoftCap => vec![(1.0, 0.0, &[2.0], 2.0 * tanh_half), (0.0, 0.0, &[2.0], 0.0)],
            // Within the limit; beyond it, where only the gate has no lower end.
            Map::ClampedGate => vec![
                (1.0, 2.0, &[7.0, 1.0], 3.0 * silu_1),
                (0.5, -1.0, &[7.0, 2.0], 0.0),
                (9.0, 9.0, &[1.0, 1.0], 2.0 * silu_1),
                (-1.0, -9.0, &[0.5, 1.0], 0.5 * (silu_1 - 1.0)),
            ],
        }
    }

    #[test]
    fn functions_have_their_known_values() {
        for &map in Map::ALL {
            let row = row(map);
            assert_eq!(row.usual.len(), map.spec().params.len(), "{map:?}");
            for (a, b, params, expected) in known(map) {
                let found = (row.reference)(a, b, params);
                assert!((found - expected).abs() < 1e-12, "{map:?}({a}, {b}) is {found}");
            }
        }
    }
}
