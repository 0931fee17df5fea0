//! The device that the flags name.

use crate::args::{DeviceArgs, DeviceName};
use anyhow::Result;
use runtime::cpu::{CpuDevice, Options};
use runtime::cuda::CudaDevice;
use runtime::device::Device;
use runtime::interp::InterpDevice;

pub fn open(args: &DeviceArgs) -> Result<Box<dyn Device>> {
    Ok(match args.device {
        DeviceName::Cpu => Box::new(cpu(args, args.threads)?),
        DeviceName::Cuda(n) => Box::new(CudaDevice::new(n)?),
        DeviceName::Interp => Box::new(InterpDevice::default()),
    })
}

pub fn cpu(args: &DeviceArgs, threads: Option<usize>) -> Result<CpuDevice> {
    Ok(CpuDevice::new(Options { threads, tier: args.tier.map(Into::into) })?)
}
