//! The devices of a guest, as QEMU is told of them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::parts;

/// A machine that has memory, two serial ports, and what it is given.
#[derive(Clone)]
pub struct Machine {
    /// The emulator and what stands before it.
    qemu: Vec<OsString>,
    /// The folder of its kernel.
    linux: PathBuf,
    memory: u32,
    devices: Vec<OsString>,
    file_systems: usize,
    /// More for the kernel's command line.
    kernel: String,
}

impl Default for Machine {
    fn default() -> Self {
        Machine::new()
    }
}

impl Machine {
    /// With 256 MiB of memory, which devices share, emulated by the machine's own QEMU.
    ///
    /// # Panics
    /// If QEMU or the kernel is missing.
    pub fn new() -> Machine {
        let qemu = parts::program("qemu-system-x86_64", "qemu-system-x86");
        Machine {
            qemu: vec![qemu.into()],
            linux: parts::linux(),
            memory: 256,
            devices: Vec::new(),
            file_systems: 0,
            kernel: String::new(),
        }
    }

    /// Emulated by another QEMU: a program, and arguments that come before all others.
    pub fn emulated_by(mut self, program: impl IntoIterator<Item = OsString>) -> Machine {
        self.qemu = program.into_iter().collect();
        self
    }

    /// With another kernel, of a folder as [`parts::linux`] is one.
    pub fn linux(mut self, folder: PathBuf) -> Machine {
        self.linux = folder;
        self
    }

    /// The folder of its kernel's modules.
    pub(crate) fn modules(&self) -> PathBuf {
        self.linux.join("modules")
    }

    /// With so many MiB of memory.
    pub fn memory(mut self, mebibytes: u32) -> Machine {
        self.memory = mebibytes;
        self
    }

    /// With so many processors.
    pub fn processors(self, count: u32) -> Machine {
        self.option("-smp", &count.to_string())
    }

    /// Adds a virtio-fs device named `tag`, which a server at `socket` has.
    pub fn virtiofs(self, tag: &str, socket: &Path) -> Machine {
        self.virtiofs_with(tag, socket, 1)
    }

    /// The same with so many queues for requests.
    pub fn virtiofs_with(self, tag: &str, socket: &Path, queues: u32) -> Machine {
        let (id, machine) = self.vhost_user(socket);
        machine.device(&format!(
            "vhost-user-fs-pci,chardev={id},tag={tag},queue-size=1024,num-request-queues={queues}"
        ))
    }

    /// The same with a window of memory for files that are mapped, which only the newer QEMU has
    /// ([`parts::newer_qemu`]), in its generic device.
    ///
    /// # Panics
    /// If it has not been unpacked.
    pub fn virtiofs_with_window(self, socket: &Path) -> Machine {
        let (id, machine) = self.emulated_by(parts::newer_qemu()).vhost_user(socket);
        machine.device(&format!(
            "vhost-user-test-device-pci,chardev={id},virtio-id=26,num_vqs=2,vq_size=1024,\
             config_size=40"
        ))
    }

    /// Adds a way to a vhost-user server at `socket`; returns its name for a device.
    pub fn vhost_user(mut self, socket: &Path) -> (String, Machine) {
        let id = format!("fs{}", self.file_systems);
        self.file_systems += 1;
        let socket = socket.to_str().expect("a path in UTF-8");
        let machine = self.option("-chardev", &format!("socket,id={id},path={socket}"));
        (id, machine)
    }

    /// Adds a folder of this machine as a 9P file system named `tag`: the peer of virtio-fs.
    pub fn ninep(self, tag: &str, folder: &Path) -> Machine {
        let folder = folder.to_str().expect("a path in UTF-8");
        let backend = format!("local,id={tag},path={folder},security_model=none");
        self.option("-fsdev", &backend)
            .device(&format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"))
    }

    /// Adds a device, in QEMU's words.
    pub fn device(self, device: &str) -> Machine {
        self.option("-device", device)
    }

    /// Adds an option, in QEMU's words.
    pub fn option(mut self, option: &str, value: &str) -> Machine {
        self.devices.extend([option.into(), value.into()]);
        self
    }

    /// Adds to the kernel's command line.
    pub fn kernel(mut self, more: &str) -> Machine {
        self.kernel.push(' ');
        self.kernel.push_str(more);
        self
    }

    /// The command that runs it, with the first file system `archive`, and the kernel's log at
    /// `console`.
    pub(crate) fn command(&self, archive: &Path, console: &Path) -> Vec<OsString> {
        let memory = self.memory;
        let mut command = self.qemu.clone();
        let mut add = |words: &[&str]| command.extend(words.iter().map(OsString::from));
        add(&["-accel", "tcg", "-M", "q35", "-cpu", "max", "-m", &memory.to_string()]);
        // Servers of devices map it.
        let shared = format!("memory-backend-memfd,id=memory,size={memory}M,share=on");
        add(&["-object", &shared, "-numa", "node,memdev=memory"]);
        add(&["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        add(&["-chardev", &format!("file,id=console,path={}", path(console))]);
        add(&["-serial", "chardev:console", "-serial", "stdio"]);
        add(&["-kernel", &path(&self.linux.join("vmlinuz")), "-initrd", &path(archive)]);
        // A kernel that panics ends the machine, and so its test. On a busy machine the emulated
        // timer may tick too rarely for the kernel's check of it.
        add(&["-append", &format!("console=ttyS0 panic=-1 no_timer_check{}", self.kernel)]);
        command.extend(self.devices.iter().cloned());
        command
    }
}

fn path(path: &Path) -> String {
    PathBuf::from(path).into_os_string().into_string().expect("a path in UTF-8")
}
