//! The device itself and its clock. Whatever is made from the device keeps its handle, so that the
//! device goes last, wherever opening it stops.

use std::ops::Deref;
use std::sync::Arc;

use ash::vk;

use super::instance::Instance;

/// Device functions; destroys the device when the last owner is gone.
pub(super) struct Handle {
    raw: ash::Device,
    /// Outlives the device.
    _instance: Arc<Instance>,
}

impl Handle {
    pub(super) fn new(raw: ash::Device, instance: Arc<Instance>) -> Arc<Self> {
        Arc::new(Self { raw, _instance: instance })
    }
}

impl Deref for Handle {
    type Target = ash::Device;

    fn deref(&self) -> &ash::Device {
        &self.raw
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: everything made from the device had a share of this handle and is destroyed.
        unsafe { self.raw.destroy_device(None) };
    }
}

/// A semaphore that counts submissions that are done.
pub(super) struct Timeline {
    pub(super) semaphore: vk::Semaphore,
    device: Arc<Handle>,
}

impl Timeline {
    pub(super) fn new(device: &Arc<Handle>) -> Result<Self, vk::Result> {
        let mut kind =
            vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: the device has timeline semaphores, which opening requires.
        let semaphore = unsafe { device.create_semaphore(&info, None) }?;
        Ok(Self { semaphore, device: device.clone() })
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        // SAFETY: the device is idle and no submission refers to the semaphore.
        unsafe { self.device.destroy_semaphore(self.semaphore, None) };
    }
}
