//! The back end's half of vhost-user: what the front end sets, and what it is told.
//!
//! A message is received and answered by crate vhost; here is what it means for the device.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVirtioFeatures,
    VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

use super::dirty_log::DirtyLog;
use super::inflight::{self, Record};
use super::memory::{GuestMemory, Place};
use super::notices::BUFFER;
use super::queue::{Features, Parts, Queue};
use super::window::RANGE;
use super::{Broken, SIZE_MAX};

/// The feature of virtio-fs that there is a queue for notices: VIRTIO 1.2, 5.11.3.
const NOTIFICATION: u64 = 1;
// Bits of the device's features: VIRTIO 1.2, 6.
const INDIRECT: u64 = 1 << 28;
const EVENT_INDEX: u64 = 1 << 29;
const VERSION_1: u64 = 1 << 32;
const PROTOCOL: u64 = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
/// Pages that the device writes are marked.
const LOG_ALL: u64 = VhostUserVirtioFeatures::LOG_ALL.bits();
const FEATURES: u64 = INDIRECT | EVENT_INDEX | VERSION_1 | PROTOCOL | LOG_ALL;

/// The features of the protocol that a window takes.
const WINDOW: VhostUserProtocolFeatures = VhostUserProtocolFeatures::SHMEM
    .union(VhostUserProtocolFeatures::BACKEND_REQ)
    .union(VhostUserProtocolFeatures::BACKEND_SEND_FD);

/// The bytes of a tag, which zeros fill up.
pub const TAG: usize = 36;
/// The bytes of the device's configuration: the tag, and how many queues there are for requests.
/// How long buffers for notices have to be follows where there are any.
const CONFIG: usize = TAG + 4;
/// The most queues for requests.
pub const REQUEST_QUEUES: u16 = 8;

/// What a front end asks for that moves its guest, with the pipe for the state.
#[derive(Debug)]
pub(super) enum Asked {
    /// To be given the state.
    Save(OwnedFd),
    /// To go on with a state.
    Load(OwnedFd),
}

/// The settings of a front end.
pub(super) struct BackEnd {
    pub memory: GuestMemory,
    /// The first has what goes before others, the rest are for requests; but the second is for
    /// notices if the guest takes them.
    pub queues: Vec<Queue>,
    /// Requests that were in flight when another back end had the queues, by queue and descriptor.
    pub resumed: Vec<(usize, u16)>,
    /// Requests that waited when the guest was elsewhere, the same.
    pub waits: Vec<(usize, u16)>,
    /// The front end wants the state, or has one.
    pub asked: Option<Asked>,
    /// The last state has gone or come.
    pub moved_well: bool,
    /// The guest has been reset: its session ends.
    pub reset: bool,
    /// A queue has been stopped.
    pub stopped: bool,
    /// How often the memory has grown.
    pub grown: u64,
    /// Whether the front end tells of memory region by region, as it comes.
    pub tells_memory: bool,
    /// Whether the front end wants acknowledgements where it says so.
    pub acknowledges: bool,
    /// Bytes of the window.
    window: u64,
    /// Whether a guest may have notices.
    tells: bool,
    features: u64,
    config: Vec<u8>,
}

fn failed(Broken(why): Broken) -> Error {
    Error::ReqHandlerError(io::Error::other(why))
}

fn unsupported<T>() -> Result<T> {
    Err(Error::InvalidOperation("this device does not have it"))
}

impl BackEnd {
    /// A device that front ends show as `tag`, with so many queues for requests, and a window of so
    /// many bytes; and one that `tells` of changes has a queue for notices, for guests that take
    /// them.
    pub fn new(tag: &str, request_queues: u16, window: u64, tells: bool) -> BackEnd {
        let mut config = vec![0; CONFIG];
        let len = tag.len().min(TAG);
        config[..len].copy_from_slice(&tag.as_bytes()[..len]);
        config[TAG..].copy_from_slice(&u32::from(request_queues).to_le_bytes());
        if tells {
            config.extend(BUFFER.to_le_bytes());
        }
        let queues = (0..=REQUEST_QUEUES + u16::from(tells)).map(|_| Queue::default()).collect();
        let memory = GuestMemory::with_ranges((window / RANGE) as usize);
        BackEnd {
            memory,
            queues,
            resumed: Vec::new(),
            waits: Vec::new(),
            asked: None,
            moved_well: false,
            reset: false,
            stopped: false,
            grown: 0,
            tells_memory: false,
            acknowledges: false,
            window,
            tells,
            features: 0,
            config,
        }
    }

    fn queue(&mut self, index: u32) -> Result<&mut Queue> {
        self.queues.get_mut(index as usize).ok_or(Error::InvalidParam)
    }

    /// The features that there are.
    fn offered(&self) -> u64 {
        FEATURES | if self.tells { NOTIFICATION } else { 0 }
    }

    /// The number of the queue for notices, if the guest takes them.
    pub fn notices(&self) -> Option<usize> {
        (self.features & NOTIFICATION != 0).then_some(1)
    }

    fn moved(&mut self) {
        self.queues.iter_mut().for_each(Queue::moved);
    }
}

impl VhostUserBackendReqHandlerMut for BackEnd {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        for queue in &mut self.queues {
            queue.stop();
            queue.enabled = false;
        }
        (self.reset, self.stopped) = (true, true);
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.offered())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        let moves = (features ^ self.features) & NOTIFICATION != 0;
        // Queues change their places then.
        let runs = self.queues.iter().any(|queue| queue.started);
        if features & !self.offered() != 0 || moves && runs {
            return Err(Error::InvalidParam);
        }
        self.features = features;
        self.memory.set_logs(features & LOG_ALL != 0);
        let has = |bit| features & bit != 0;
        let of_queues = Features { event_index: has(EVENT_INDEX), indirect: has(INDIRECT) };
        for queue in &mut self.queues {
            queue.features = of_queues;
            // Without the protocol's features nobody says so later.
            queue.enabled |= !has(PROTOCOL);
        }
        let notices = self.notices();
        for (number, queue) in self.queues.iter_mut().enumerate() {
            queue.set_has_buffers(notices == Some(number));
        }
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let before = self.memory.len();
        self.memory.clear();
        self.moved();
        if regions.len() != files.len() {
            return Err(Error::IncorrectFds);
        }
        for (region, file) in regions.iter().zip(files) {
            let place = Place {
                guest: region.guest_phys_addr,
                user: region.user_addr,
                len: region.memory_size,
                at: region.mmap_offset,
            };
            self.memory.add(place, file.into()).map_err(failed)?;
        }
        self.grown += u64::from(self.memory.len() > before);
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        self.queue(index)?.resize(num).map_err(failed)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        log: u64,
    ) -> Result<()> {
        let log = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG).then_some(log);
        self.queue(index)?.place(Parts { descriptors, available, used }, log);
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.queue(index)?.set_next(base as u16);
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let next = self.queue(index)?.stop();
        self.stopped = true;
        Ok(VhostUserVringState::new(index, u32::from(next)))
    }

    fn set_vring_kick(&mut self, index: u8, kick: Option<File>) -> Result<()> {
        let BackEnd { memory, queues, resumed, waits, .. } = self;
        let number = usize::from(index);
        let queue = queues.get_mut(number).ok_or(Error::InvalidParam)?;
        queue.set_kick(kick.map(Into::into)).map_err(failed)?;
        if !queue.started {
            let heads = queue.start(memory).map_err(failed)?;
            resumed.retain(|&(queue, _)| queue != number);
            resumed.extend(heads.into_iter().map(|head| (number, head)));
            resumed.extend(waits.extract_if(.., |(queue, _)| *queue == number));
        }
        Ok(())
    }

    fn set_vring_call(&mut self, index: u8, call: Option<File>) -> Result<()> {
        self.queue(index.into())?.set_call(call.map(Into::into)).map_err(failed)
    }

    fn set_vring_err(&mut self, index: u8, _: Option<File>) -> Result<()> {
        // A guest whose queue is broken loses its connection.
        self.queue(index.into()).map(drop)
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::DEVICE_STATE
            | VhostUserProtocolFeatures::LOG_SHMFD
            | if self.window > 0 { WINDOW } else { VhostUserProtocolFeatures::empty() })
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        let has = |feature: VhostUserProtocolFeatures| features & feature.bits() != 0;
        self.acknowledges = has(VhostUserProtocolFeatures::REPLY_ACK);
        self.tells_memory = has(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS);
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.queues.len() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.queue(index)?.enabled = enable;
        Ok(())
    }

    fn get_config(&mut self, offset: u32, size: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let end = offset.checked_add(size).ok_or(Error::InvalidParam)?;
        let place = offset as usize..end as usize;
        self.config.get(place).map(<[u8]>::to_vec).ok_or(Error::InvalidParam)
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        unsupported()
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        unsupported()
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        unsupported()
    }

    fn get_inflight_fd(&mut self, asked: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let (queues, size) = (asked.num_queues, asked.queue_size);
        if usize::from(queues) > self.queues.len() || size > SIZE_MAX {
            return Err(Error::InvalidParam);
        }
        let memory = inflight::create(queues, size).map_err(Error::ReqHandlerError)?;
        let file = memory.as_fd().try_clone_to_owned().map_err(Error::ReqHandlerError)?;
        let len = inflight::len(queues, size) as u64;
        Ok((VhostUserInflight::new(len, 0, queues, size), file.into()))
    }

    fn set_inflight_fd(&mut self, record: &VhostUserInflight, file: File) -> Result<()> {
        let shape = (record.num_queues, record.queue_size);
        if self.queues.iter().any(|queue| queue.started) {
            return Err(failed(Broken("handed over a record of requests too late")));
        }
        let records = Record::open(file.into(), record.mmap_offset, shape).map_err(failed)?;
        for (queue, record) in self.queues.iter_mut().zip(records) {
            queue.keep(record);
        }
        Ok(())
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(self.memory.regions_max() as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        self.memory.add(single(region), file.into()).map_err(failed)?;
        self.grown += 1;
        self.moved();
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        self.moved();
        match self.memory.remove(&single(region)) {
            true => Ok(()),
            false => Err(Error::InvalidParam),
        }
    }

    fn set_device_state_fd(
        &mut self,
        direction: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        pipe: File,
    ) -> Result<Option<File>> {
        self.moved_well = false;
        self.asked = Some(match direction {
            VhostTransferStateDirection::SAVE => Asked::Save(pipe.into()),
            VhostTransferStateDirection::LOAD => Asked::Load(pipe.into()),
        });
        Ok(None)
    }

    fn check_device_state(&mut self) -> Result<()> {
        match self.moved_well {
            true => Ok(()),
            false => Err(failed(Broken("did not move its guest"))),
        }
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Ok(VhostUserShMemConfig::new(u32::from(self.window > 0), &[self.window]))
    }

    fn set_log_base(&mut self, log: &VhostUserLog, file: File) -> Result<()> {
        let log = DirtyLog::open(file.into(), log.mmap_offset, log.mmap_size).map_err(failed)?;
        self.memory.set_log(log);
        Ok(())
    }
}

fn single(region: &VhostUserSingleMemoryRegion) -> Place {
    Place {
        guest: region.guest_phys_addr,
        user: region.user_addr,
        len: region.memory_size,
        at: region.mmap_offset,
    }
}
