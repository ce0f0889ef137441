//! scan
use clearway_graph::testkit::random_dag;
use clearway_graph::{place, schedule};
fn main() {
    for w in [2usize, 4, 8] {
        let (mut s0, mut s1, mut s2, mut g) = (0.0, 0.0, 0.0, 0.0);
        let n = 64;
        for seed in 0..n {
            let graph = random_dag(seed, w);
            let chain = schedule::longest_chain(&graph);
            let mut seq = graph.clone();
            seq.place_barriers_everywhere();
            let lbseq = place::plan(&seq, 64).unwrap().lower_bound() as f64;
            let mut lev = graph.clone();
            lev.reorder();
            let b = lev.place_barriers();
            let p = place::plan(&lev, 64).unwrap();
            s0 += p.total_bytes() as f64 / lbseq;
            s1 += p.lower_bound() as f64 / lbseq;
            s2 += place::plan(&seq, 64).unwrap().total_bytes() as f64 / lbseq;
            g += f64::from(b + 1) / f64::from(chain);
        }
        let n = n as f64;
        println!(
            "w {w}: bytes {:.3} lb {:.3} seq {:.3} groups {:.3}",
            s0 / n,
            s1 / n,
            s2 / n,
            g / n
        );
    }
}
