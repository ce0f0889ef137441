//! The device itself and its clock. Whatever is made from the device keeps its handle, so that the
//! device goes last, wherever opening it stops. A device that may still work for ever is *abandoned*: then
//! nothing that was made from it is destroyed, nor the device, nor its instance.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ash::vk;

use super::instance::Instance;

/// Device functions; destroys the device when the last owner is gone.
pub(super) struct Handle {
    raw: ash::Device,
    abandoned: AtomicBool,
    /// Outlives the device.
    instance: Arc<Instance>,
}

impl Handle {
    pub(super) fn new(raw: ash::Device, instance: Arc<Instance>) -> Arc<Self> {
        Arc::new(Self { raw, abandoned: AtomicBool::new(false), instance })
    }

    /// Leaves the device and all that was made from it as they are, for good.
    pub(super) fn abandon(&self) {
        if !self.abandoned.swap(true, Ordering::Relaxed) {
            std::mem::forget(self.instance.clone());
        }
    }

    /// Whether objects of the device must not be destroyed, because it may still use them.
    pub(super) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
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
        if self.is_abandoned() {
            return;
        }
        // SAFETY: VUID-vkDestroyDevice-device-05137: all that is made from the device has a share of this
        // handle and destroys itself before it gives that up, so nothing is left now.
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
        // SAFETY: VUID-VkSemaphoreTypeCreateInfo-timelineSemaphore-03252: `create_device` enables timeline
        // semaphores, and adapters without them cannot be opened.
        let semaphore = unsafe { device.create_semaphore(&info, None) }?;
        Ok(Self { semaphore, device: device.clone() })
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        if self.device.is_abandoned() {
            return;
        }
        // SAFETY: VUID-vkDestroySemaphore-semaphore-05149: `Context`, the only owner once it was opened, waits
        // for all submissions before its fields go, or abandons the device. Before that nothing was submitted.
        unsafe { self.device.destroy_semaphore(self.semaphore, None) };
    }
}
