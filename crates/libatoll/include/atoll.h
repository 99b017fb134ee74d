/* Atoll's C library: a volume inside one process with no server, or one of a server.
 *
 * A process makes a volume with atoll_mkfs (or the command `atoll mkfs`), mounts it with
 * atoll_mount and uses it with the calls below. Each takes the arguments of the POSIX or Linux call
 * it is named after, returns what that returns, and sets errno. All structures and constants are
 * those of the C library. Beside the errors of those calls there are
 *   EBADF and ENODEV  no volume is mounted (calls on descriptors; other calls)
 *   EIO               the device failed, or a defect of this library was caught
 *   EDEADLK           called by a signal handler that interrupted another call of its thread
 *
 * Descriptors are numbers of this library, no descriptors of the kernel: they go to its calls only.
 * The numbers begin at 3 unless the mount says otherwise, so that those of the standard streams are
 * never given out.
 *
 * Crashes: a call that has returned survives the end of the process, by whatever signal. Data
 * that atoll_fsync covered survives power loss as well.
 *
 * Threads: every call may be made by any thread at any time; a stream of atoll_opendir is used by
 * one thread at a time. Calls are made one after the other, under one lock.
 *
 * Signals: the calls are not async-signal-safe.
 *
 * fork: a volume belongs to the process that mounted it, and so do its locks. In the child no
 * volume is mounted, and nothing that it does reaches the parent's; it may mount one of its own. A
 * volume in a file or device stays in use (EBUSY) after a parent that was killed, not after one
 * that has unmounted it, until the children that it forked since the mount have ended or called
 * exec. A server sees the parent's end at once; with children of vfork, clone or _Fork, when those
 * have ended or called exec.
 *
 * Linking: cc program.c -latoll, or cc program.c libatoll.a -lgcc_s -lutil -lrt -lpthread -lm -ldl
 * (Rust's own libraries). With SQLite add atoll_sqlite.c and -lsqlite3 in front.
 */
#ifndef ATOLL_H
#define ATOLL_H

#include <dirent.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the volume ---- */

/* Flags of struct atoll_options. */
enum {
    ATOLL_RDONLY = 1,   /* refuse every change */
    ATOLL_PREAD = 2,    /* reach the device by pread and pwrite alone, instead of mapping it */
    ATOLL_RAM = 4,      /* a new volume in memory, gone with the process; the path is not used */
    ATOLL_FORCE = 8,    /* make the volume even where there is something else */
    ATOLL_SEALABLE = 16, /* atoll_seal will be called */
    ATOLL_RELATIME = 32 /* reading sets st_atime, once after a change and once a day; else never */
};

/* How to make or mount a volume: begin with ATOLL_OPTIONS; zeros mean the defaults. */
struct atoll_options {
    size_t size;           /* of this structure */
    unsigned int flags;    /* ATOLL_RDONLY and so on */
    int first_descriptor;  /* the lowest number given out; 3 by default */
    uint64_t volume_bytes; /* length of a file to be made, or of a volume in memory */
    size_t cache_bytes;    /* bound of the memory for cached blocks; by default a part of what the
                            * process may have */
    uid_t uid;             /* owner of what is created */
    gid_t gid;             /* group of what is created */
};

#define ATOLL_OPTIONS {sizeof(struct atoll_options), 0, 0, 0, 0, 0, 0}

/* Makes a volume in the file or block device `path`. A file that is missing is made if
 * volume_bytes is given. Fails with EEXIST if the file holds something, unless forced. */
int atoll_mkfs(const char *path, const struct atoll_options *options);

/* Mounts the volume in `path` as the one volume of this process. The volume is locked: EBUSY if
 * another process has it, or this one has one already. EMEDIUMTYPE: this is no volume.
 *
 * Where `path` is the socket of a server (`atoll serve`), or SOCKET/VOLUME, this process becomes
 * one of its clients. The server judges what it may do (uid and gid of the options mean nothing
 * unless it is the superuser), and keeps what was done when this process ends. ECONNREFUSED:
 * nobody listens; EACCES: the server refuses, for the reason in atoll_error.
 *
 * `vhost-user:SOCKET` is a virtio-fs device, which another process (`atoll serve --vhost-user`,
 * virtiofsd) offers to virtual machines: this process is its guest, the only one, and the
 * device's rules hold. */
int atoll_mount(const char *path, const struct atoll_options *options);

/* Closes all descriptors, makes everything durable and unmounts. Streams of atoll_opendir that are
 * still open may be given to atoll_closedir only. */
int atoll_unmount(void);

/* Seals this process for ever: of the host it keeps its volume, which was mounted with
 * ATOLL_SEALABLE, and writing to descriptors 1 and 2. Any other system call ends it with SIGSYS:
 * after this, memory comes from the reserve_bytes that are made ready first, time from the vDSO,
 * and the process ends by _exit. (Standard streams make other calls at their first use, and exit
 * may.) A volume reached by pread needs pread64 and pwrite64 on its file, a mapped one msync. To be
 * called in the thread that began the process. */
int atoll_seal(size_t reserve_bytes);

/* The message of the last call of this group that failed in this thread: what was wrong, and what
 * to do. Stays until the next one fails. */
const char *atoll_error(void);

/* 1 if a server serves the mounted volume, so that other processes may use it at the same time; 0
 * if this process has it alone. */
int atoll_is_served(void);

/* ---- descriptors ---- */

int atoll_open(const char *path, int flags, ...);
int atoll_openat(int dirfd, const char *path, int flags, ...);
int atoll_creat(const char *path, mode_t mode);
int atoll_close(int fd);
int atoll_dup(int fd);
int atoll_dup2(int fd, int to);
int atoll_dup3(int fd, int to, int flags);
/* Locks: F_GETLK, F_SETLK, F_SETLKW belong to the process, F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW
 * and atoll_flock to the open file. Where a server serves the volume they hold among all that use
 * it, through mounts and under `atoll run` too, and are gone when the process is; otherwise among
 * this process's own descriptors. A call that waits looks every millisecond, lets other threads
 * call, and ends with EINTR when a signal's handler has run, SA_RESTART or not. While a file of a
 * server is locked, F_SETFL does not change its O_APPEND (EBUSY). ENOLCK: too many locks, or a
 * server that has none for this client. */
int atoll_fcntl(int fd, int command, ...);
int atoll_flock(int fd, int operation);

ssize_t atoll_read(int fd, void *buf, size_t count);
ssize_t atoll_write(int fd, const void *data, size_t count);
ssize_t atoll_pread(int fd, void *buf, size_t count, off_t offset);
ssize_t atoll_pwrite(int fd, const void *data, size_t count, off_t offset);
ssize_t atoll_readv(int fd, const struct iovec *iov, int count);
ssize_t atoll_writev(int fd, const struct iovec *iov, int count);
ssize_t atoll_preadv(int fd, const struct iovec *iov, int count, off_t offset);
ssize_t atoll_pwritev(int fd, const struct iovec *iov, int count, off_t offset);
off_t atoll_lseek(int fd, off_t offset, int whence);
ssize_t atoll_copy_file_range(int from, off_t *from_at, int to, off_t *to_at, size_t count,
                              unsigned flags);

int atoll_fsync(int fd);
int atoll_fdatasync(int fd);
int atoll_syncfs(int fd);
int atoll_sync(void);
int atoll_ftruncate(int fd, off_t length);
int atoll_fallocate(int fd, int mode, off_t offset, off_t len);
int atoll_posix_fallocate(int fd, off_t offset, off_t len);

/* ---- names ---- */

int atoll_mkdir(const char *path, mode_t mode);
int atoll_mkdirat(int dirfd, const char *path, mode_t mode);
int atoll_mknod(const char *path, mode_t mode, dev_t dev);
int atoll_mknodat(int dirfd, const char *path, mode_t mode, dev_t dev);
int atoll_symlink(const char *target, const char *path);
int atoll_symlinkat(const char *target, int dirfd, const char *path);
int atoll_link(const char *old, const char *new_path);
int atoll_linkat(int old_dirfd, const char *old, int new_dirfd, const char *new_path, int flags);
ssize_t atoll_readlink(const char *path, char *buf, size_t size);
ssize_t atoll_readlinkat(int dirfd, const char *path, char *buf, size_t size);
int atoll_unlink(const char *path);
int atoll_unlinkat(int dirfd, const char *path, int flags);
int atoll_rmdir(const char *path);
int atoll_remove(const char *path);
int atoll_rename(const char *old, const char *new_path);
int atoll_renameat(int old_dirfd, const char *old, int new_dirfd, const char *new_path);
int atoll_renameat2(int old_dirfd, const char *old, int new_dirfd, const char *new_path,
                    unsigned int flags);

/* ---- attributes; st_dev is 0, since a volume is no device of the host ---- */

int atoll_stat(const char *path, struct stat *buf);
int atoll_lstat(const char *path, struct stat *buf);
int atoll_fstat(int fd, struct stat *buf);
int atoll_fstatat(int dirfd, const char *path, struct stat *buf, int flags);
int atoll_access(const char *path, int mode);
int atoll_faccessat(int dirfd, const char *path, int mode, int flags);
int atoll_chmod(const char *path, mode_t mode);
int atoll_fchmod(int fd, mode_t mode);
int atoll_fchmodat(int dirfd, const char *path, mode_t mode, int flags);
int atoll_chown(const char *path, uid_t owner, gid_t group);
int atoll_lchown(const char *path, uid_t owner, gid_t group);
int atoll_fchown(int fd, uid_t owner, gid_t group);
int atoll_fchownat(int dirfd, const char *path, uid_t owner, gid_t group, int flags);
int atoll_utimensat(int dirfd, const char *path, const struct timespec *times, int flags);
int atoll_futimens(int fd, const struct timespec *times);
int atoll_utimes(const char *path, const struct timeval *times);
int atoll_truncate(const char *path, off_t length);
mode_t atoll_umask(mode_t mask);
int atoll_statvfs(const char *path, struct statvfs *buf);
int atoll_fstatvfs(int fd, struct statvfs *buf);

/* ---- extended attributes: user., trusted. and security. ---- */

int atoll_setxattr(const char *path, const char *name, const void *value, size_t size, int flags);
int atoll_lsetxattr(const char *path, const char *name, const void *value, size_t size, int flags);
int atoll_fsetxattr(int fd, const char *name, const void *value, size_t size, int flags);
ssize_t atoll_getxattr(const char *path, const char *name, void *value, size_t size);
ssize_t atoll_lgetxattr(const char *path, const char *name, void *value, size_t size);
ssize_t atoll_fgetxattr(int fd, const char *name, void *value, size_t size);
ssize_t atoll_listxattr(const char *path, char *names, size_t size);
ssize_t atoll_llistxattr(const char *path, char *names, size_t size);
ssize_t atoll_flistxattr(int fd, char *names, size_t size);
int atoll_removexattr(const char *path, const char *name);
int atoll_lremovexattr(const char *path, const char *name);
int atoll_fremovexattr(int fd, const char *name);

/* ---- directories ---- */

/* A directory being read. */
typedef struct atoll_dir ATOLL_DIR;

ssize_t atoll_getdents64(int fd, void *buf, size_t size);
ATOLL_DIR *atoll_opendir(const char *path);
ATOLL_DIR *atoll_fdopendir(int fd);
struct dirent *atoll_readdir(ATOLL_DIR *dir);
int atoll_closedir(ATOLL_DIR *dir);
void atoll_rewinddir(ATOLL_DIR *dir);
long atoll_telldir(ATOLL_DIR *dir);
void atoll_seekdir(ATOLL_DIR *dir, long place);
int atoll_dirfd(ATOLL_DIR *dir);
char *atoll_getcwd(char *buf, size_t size);
int atoll_chdir(const char *path);
int atoll_fchdir(int fd);

#ifdef __cplusplus
}
#endif

#endif
