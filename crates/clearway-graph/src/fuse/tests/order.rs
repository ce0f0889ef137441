//! A long list, which is fused tile by tile, becomes what it would rule by rule.

use super::random::Model;
use crate::fuse::{FuseReport, Stage, TestCatalog};
use crate::testkit::{Rng, Run, decoder_like};
use crate::{CapturedNode, ComputeGraph};

/// Nodes and report, the fusions in the order of their results, and whether the stage came to the end
/// in several tiles.
fn fused(graph: &ComputeGraph, whole: bool) -> ((Vec<CapturedNode>, FuseReport), bool) {
    let mut stage = Stage::new(graph, whole);
    let tiled = stage.list.order.is_tiled();
    let finished = stage.run(&mut TestCatalog::new(), &()).unwrap();
    assert!(finished || tiled, "rule by rule always comes to the end");
    let (nodes, mut report, _) = stage.finish();
    report.fusions.sort_by_key(|fusion| (fusion.result, fusion.members.len()));
    ((nodes, report), tiled && finished)
}

#[test]
fn a_decoder_is_fused_tile_by_tile_as_it_is_rule_by_rule() {
    let graph = decoder_like(3_000);
    let (tiled, finished) = fused(&graph, false);
    assert!(finished, "the values of a decoder live short");
    assert!(tiled == fused(&graph, true).0);
    let (_, few) = fused(&decoder_like(300), false);
    assert!(!few, "a short list is one tile");
}

#[test]
fn lists_of_short_lives_are_fused_tile_by_tile_as_they_are_rule_by_rule() {
    let run = Run::from_env("fusion tile by tile", 20);
    let (mut tiled, mut restarted) = (0, 0);
    for seed in run.seeds() {
        let ops = Rng::new(seed).within(600, 1_200);
        let graph = Model::of_short_lives(seed).list(ops);
        let (whole, _) = fused(&graph, true);
        match fused(&graph, false) {
            (near, true) => {
                tiled += 1;
                assert!(near == whole, "seed {seed}");
            }
            _ => restarted += 1,
        }
        let mut last = graph.clone();
        last.fuse(&mut TestCatalog::new(), &()).unwrap();
        assert!(last.nodes() == whole.0, "seed {seed}");
    }
    assert!(run.cases < 100 || (tiled > 3 && restarted > 3), "{tiled}, {restarted} restarted");
}
