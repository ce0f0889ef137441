//! A device that is lost under the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use clearway::cpu::CpuDevice;
use clearway::{
    Buffer, DType, Device, DeviceInfo, Encoder, GpuError, KernelRegistry, Layout, Program, Ticket,
};
use clearway_graph::{BarrierReason, CommandEncoder, Dispatch, FusedRequest};
use serde_json::json;

use crate::server::Setup;

/// The CPU, which can be unplugged.
struct Unplugged {
    inner: CpuDevice,
    gone: Arc<AtomicBool>,
}

fn lost() -> GpuError {
    GpuError::DeviceLost { device: "cpu".into(), call: "test" }
}

impl Device for Unplugged {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn alloc(&self, bytes: u64) -> Result<Buffer, GpuError> {
        self.inner.alloc(bytes)
    }

    fn upload_weights(&self, layout: &Layout, bytes: &[u8]) -> Result<Buffer, GpuError> {
        self.inner.upload_weights(layout, bytes)
    }

    fn supports_weights(&self, dtype: DType) -> bool {
        self.inner.supports_weights(dtype)
    }

    fn buffer(&self, buf_id: usize) -> Result<Buffer, GpuError> {
        self.inner.buffer(buf_id)
    }

    fn has_fused(&self, request: &FusedRequest<'_>) -> bool {
        self.inner.has_fused(request)
    }

    fn encoder(&self, kernels: &KernelRegistry) -> Box<dyn Encoder> {
        let inner = self.inner.encoder(kernels);
        Box::new(Commands { inner, gone: self.gone.clone() })
    }
}

struct Commands {
    inner: Box<dyn Encoder>,
    gone: Arc<AtomicBool>,
}

impl CommandEncoder for Commands {
    type Error = GpuError;

    fn dispatch(&mut self, dispatch: &Dispatch) -> Result<(), GpuError> {
        self.inner.dispatch(dispatch)
    }

    fn barrier(&mut self, reason: &BarrierReason) -> Result<(), GpuError> {
        self.inner.barrier(reason)
    }

    fn commit(&mut self) -> Result<(), GpuError> {
        self.inner.commit()
    }

    fn orders_commits(&self) -> bool {
        self.inner.orders_commits()
    }
}

impl Encoder for Commands {
    fn wait(&mut self) -> Result<(), GpuError> {
        self.inner.wait()
    }

    fn into_program(self: Box<Self>) -> Result<Box<dyn Program>, GpuError> {
        Ok(Box::new(Replayed { inner: self.inner.into_program()?, gone: self.gone }))
    }
}

struct Replayed {
    inner: Box<dyn Program>,
    gone: Arc<AtomicBool>,
}

impl Replayed {
    fn there(&self) -> Result<(), GpuError> {
        if self.gone.load(Ordering::SeqCst) { Err(lost()) } else { Ok(()) }
    }
}

impl Program for Replayed {
    fn run(&mut self) -> Result<(), GpuError> {
        self.there()?;
        self.inner.run()
    }

    fn start(&mut self, times: usize) -> Result<Ticket, GpuError> {
        self.there()?;
        self.inner.start(times)
    }

    fn finish(&mut self, runs: Ticket) -> Result<(), GpuError> {
        self.there()?;
        self.inner.finish(runs)
    }
}

#[test]
fn requests_under_way_fail_and_the_next_one_works() {
    let plugs: Arc<std::sync::Mutex<Vec<Arc<AtomicBool>>>> = Arc::default();
    let opened = Arc::new(AtomicUsize::new(0));
    let device = {
        let (plugs, opened) = (plugs.clone(), opened.clone());
        move || {
            opened.fetch_add(1, Ordering::SeqCst);
            let gone = Arc::new(AtomicBool::new(false));
            plugs.lock().unwrap().push(gone.clone());
            Arc::new(Unplugged { inner: CpuDevice::new(), gone }) as Arc<dyn Device>
        }
    };
    let server = Setup { device: Arc::new(device), ..Setup::default() }.start();
    server.wait();
    let unplug = || plugs.lock().unwrap().last().unwrap().store(true, Ordering::SeqCst);
    let short = json!({ "prompt": "Once upon", "max_tokens": 5, "ignore_eos": true, "seed": 3 });
    let before = server.client.post("/v1/completions", &short).json();
    for round in 1..=2 {
        // In the middle of a text.
        let long = json!({ "prompt": "Once upon", "max_tokens": 900, "ignore_eos": true, "n": 32 });
        let failed = std::thread::scope(|scope| {
            let under_way = scope.spawn(|| server.client.post("/v1/completions", &long));
            crate::server::until("a text", || server.client.get("/slots").json()["running"] != 0);
            unplug();
            under_way.join().unwrap()
        });
        assert_eq!(failed.status, 500, "{failed:?}");
        assert_eq!(failed.json()["error"]["code"], "engine_error");
        assert!(failed.error().contains("lost"), "{failed:?}");
        let after = server.client.post("/v1/completions", &short);
        assert_eq!(after.status, 200, "{after:?}");
        assert_eq!(after.json()["choices"], before["choices"]);
        server.wait_idle();
        assert_eq!(opened.load(Ordering::SeqCst), 1 + round);
    }
    // While nothing runs, and in the middle of a vector.
    unplug();
    let failed = server.client.post("/v1/embeddings", &json!({ "input": "a" }));
    assert_eq!((failed.status, &failed.json()["error"]["code"]), (500, &json!("engine_error")));
    assert_eq!(server.client.post("/v1/embeddings", &json!({ "input": "a" })).status, 200);
    let metrics = server.client.get("/metrics").body;
    assert!(metrics.contains("clearway_device_reopened_total{model_name=\"tiny\"} 3"), "{metrics}");
    server.wait_idle();
}
