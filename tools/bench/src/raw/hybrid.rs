//! Turning tasks with a shard's executor and the driver of its ring: what an engine is built
//! on, and nothing of the engine.

use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use terrace_nvme::IoBackend;
use terrace_nvme::uring::Ring;
use terrace_runtime::executor::{ExecutorConfig, ShardThread};
use terrace_runtime::io::drive;
use terrace_runtime::{Eventfd, Runtime};

use super::load::{Gate, Load, Work};
use super::memory::BlockMemory;
use super::meter::Sample;
use super::target::Target;

/// One round of the mode `hybrid`.
pub(super) fn round(target: &Target, memory: &BlockMemory, work: Work) -> anyhow::Result<Sample> {
    let config = ExecutorConfig {
        shard: 0,
        cpu: None,
        spin: Duration::ZERO,
    };
    let (sender, receiver) = mpsc::channel();
    let (target, memory) = (target.share(), memory.clone());
    let thread = ShardThread::start(&config, move |runtime| async move {
        let _ = sender.send(on_thread(&runtime, &target, &memory, work).await);
    })?;
    let clean = thread.join();
    let sample = receiver.recv();
    sample.map_err(|_| anyhow!("the executor's task ended early: {clean}"))?
}

async fn on_thread(
    runtime: &Rc<dyn Runtime>,
    target: &Target,
    memory: &BlockMemory,
    work: Work,
) -> anyhow::Result<Sample> {
    let event = Eventfd::new().context("make an eventfd")?;
    let told = (!work.io_poll).then(|| event.as_fd());
    let ring = Ring::new(&work.ring_config(), told, &[memory.range()])?;
    let backend: Rc<dyn IoBackend> = Rc::<Ring>::clone(&ring);
    let driver = drive(runtime, backend, (!work.io_poll).then(|| event.clone()));
    let load = Load::new(work, &ring, target, memory)?;
    let gate = Rc::new(Gate::new(work.tasks()));
    for number in 0..work.tasks() {
        let (load, gate) = (Rc::clone(&load), Rc::clone(&gate));
        runtime.spawn(Box::pin(async move {
            load.turn(number).await;
            drop(load);
            gate.pass();
        }));
    }
    gate.opened().await;
    drop(driver);
    load.sample()
}
