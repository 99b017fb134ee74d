/* Runs unmodified programs on a volume, inside their own process, to measure them there: the C
 * library's calls on paths below one folder go to libatoll, all others to the C library.
 *
 *   cc -shared -fPIC -O2 -I ../crates/libatoll/include -o interposer.so programs/interposer.c \
 *      libatoll.a -lgcc_s -lutil -lrt -lpthread -lm -ldl
 *   LD_PRELOAD=./interposer.so ATOLL_VOLUME=test.vol ATOLL_PREFIX=/atoll program
 *
 * ATOLL_VOLUME  the volume's file, made with ATOLL_BYTES if it is missing or empty; or the
 *               socket of a server, or SOCKET/VOLUME
 * ATOLL_PREFIX  the folder that stands for the volume's root; it need not exist
 * ATOLL_MODE    mapped (the default), pread, or ram for a new volume in memory of ATOLL_BYTES
 * ATOLL_BYTES   1 GiB by default
 * ATOLL_LEAVE   if set, the volume is left as it is when the program ends, which syncs nothing: the
 *               next mount recovers all that was done
 *
 * The volume is mounted at the first path below the folder and unmounted when the program ends. It
 * belongs to one process: children find it gone. Calls that the C library makes inside itself do
 * not come here, nor do static programs. This library refuses what it cannot do, so that
 * programs can do without: mapping a file (ENODEV), and giving it a descriptor's number of the
 * kernel (EXDEV).
 */
#define _GNU_SOURCE
#include "atoll.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

/* Descriptors from here on are the volume's: beyond any of the kernel's in ordinary use. */
enum { FIRST = 1 << 24 };

#define OURS(fd) __builtin_expect((fd) >= FIRST, 0)

/* The C library's own function, found once. */
#define REAL(name)                                                                            \
    ({                                                                                        \
        static __typeof__(&name) real;                                                        \
        if (__builtin_expect(!real, 0)) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name);    \
        real;                                                                                 \
    })

/* ---- the volume ---- */

static char prefix[4096];
static size_t prefix_length;
static pthread_once_t once = PTHREAD_ONCE_INIT;
/* Whether the working directory lies on the volume. */
static int inside;

__attribute__((constructor)) static void read_prefix(void) {
    const char *text = getenv("ATOLL_PREFIX");
    if (!text || text[0] != '/') return;
    size_t length = strlen(text);
    while (length > 0 && text[length - 1] == '/') length--;
    if (length == 0 || length >= sizeof prefix) return;
    memcpy(prefix, text, length);
    prefix_length = length;
}

static void die(const char *what) {
    fprintf(stderr, "interposer: %s: %s\n", what, atoll_error());
    _exit(126);
}

static void mount_volume(void) {
    const char *path = getenv("ATOLL_VOLUME"), *mode = getenv("ATOLL_MODE");
    const char *bytes = getenv("ATOLL_BYTES");
    struct atoll_options options = ATOLL_OPTIONS;
    options.first_descriptor = FIRST;
    options.volume_bytes = bytes ? strtoull(bytes, NULL, 10) : 1ull << 30;
    options.uid = geteuid();
    options.gid = getegid();
    if (mode && !strcmp(mode, "ram")) options.flags = ATOLL_RAM;
    if (mode && !strcmp(mode, "pread")) options.flags = ATOLL_PREAD;
    if (!(options.flags & ATOLL_RAM)) {
        struct stat found;
        if (!path) {
            fputs("interposer: ATOLL_VOLUME names no volume\n", stderr);
            _exit(126);
        }
        int missing = REAL(stat)(path, &found) != 0;
        if (missing ? errno == ENOENT : S_ISREG(found.st_mode) && found.st_size == 0) {
            if (atoll_mkfs(path, &options) != 0) die("mkfs");
        }
    }
    if (atoll_mount(path, &options) != 0) die("mount");
    /* The kernel applies the umask elsewhere, the library here. */
    mode_t mask = umask(0);
    umask(mask);
    atoll_umask(mask);
}

__attribute__((destructor)) static void unmount_volume(void) {
    if (!getenv("ATOLL_LEAVE")) atoll_unmount();
}

/* The path on the volume that `path` names, or null. */
static inline const char *ours(const char *path) {
    if (!path || !prefix_length) return NULL;
    if (path[0] != '/') return inside ? path : NULL;
    if (strncmp(path, prefix, prefix_length) != 0) return NULL;
    const char *rest = path + prefix_length;
    if (*rest != '/' && *rest != 0) return NULL;
    pthread_once(&once, mount_volume);
    return *rest ? rest : "/";
}

/* As `ours`, for calls with a directory. */
static inline const char *ours_at(int dirfd, const char *path) {
    if (path && path[0] != '/' && dirfd != AT_FDCWD) return OURS(dirfd) ? path : NULL;
    return ours(path);
}

/* Calls with one path, or with one descriptor, and nothing special about them. */
#define BY_PATH(result, name, parameters, on_volume, otherwise)                               \
    result name parameters {                                                                  \
        const char *volume_path = ours(path);                                                 \
        return volume_path ? on_volume : REAL(name) otherwise;                                \
    }
#define BY_DIR(result, name, parameters, on_volume, otherwise)                                \
    result name parameters {                                                                  \
        const char *volume_path = ours_at(dirfd, path);                                       \
        return volume_path ? on_volume : REAL(name) otherwise;                                \
    }
#define BY_FD(result, name, parameters, on_volume, otherwise)                                 \
    result name parameters { return OURS(fd) ? on_volume : REAL(name) otherwise; }

/* ---- opening ---- */

#define MODE                                                                                  \
    mode_t mode = 0;                                                                          \
    if (flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) {                                     \
        va_list list;                                                                         \
        va_start(list, flags);                                                                \
        mode = va_arg(list, mode_t);                                                          \
        va_end(list);                                                                         \
    }

#define OPEN(name)                                                                            \
    int name(const char *path, int flags, ...) {                                              \
        MODE;                                                                                 \
        const char *volume_path = ours(path);                                                 \
        return volume_path ? atoll_open(volume_path, flags, mode)                             \
                           : REAL(name)(path, flags, mode);                                   \
    }
#define OPENAT(name)                                                                          \
    int name(int dirfd, const char *path, int flags, ...) {                                   \
        MODE;                                                                                 \
        const char *volume_path = ours_at(dirfd, path);                                       \
        return volume_path ? atoll_openat(dirfd, volume_path, flags, mode)                    \
                           : REAL(name)(dirfd, path, flags, mode);                            \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

/* Programs compiled with checks call these instead. */
int __open_2(const char *path, int flags) { return open(path, flags); }
int __open64_2(const char *path, int flags) { return open(path, flags); }
int __openat_2(int dirfd, const char *path, int flags) { return openat(dirfd, path, flags); }
int __openat64_2(int dirfd, const char *path, int flags) { return openat(dirfd, path, flags); }

BY_PATH(int, creat, (const char *path, mode_t mode), atoll_creat(volume_path, mode), (path, mode))
BY_PATH(int, creat64, (const char *path, mode_t mode), atoll_creat(volume_path, mode),
        (path, mode))
BY_FD(int, close, (int fd), atoll_close(fd), (fd))
BY_FD(int, dup, (int fd), atoll_dup(fd), (fd))

/* mkstemp(3) and its like: a new file whose name ends in six letters of chance and `suffix`. */
static int make_unique(const char *volume_path, char *path, int suffix, int flags) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    size_t length = strlen(path);
    char *place = path + length - suffix - 6;
    if (suffix < 0 || length < (size_t)suffix + 6 || memcmp(place, "XXXXXX", 6) != 0) {
        errno = EINVAL;
        return -1;
    }
    for (int attempt = 0; attempt < 1000; attempt++) {
        unsigned long chance = 0;
        syscall(SYS_getrandom, &chance, sizeof chance, 0);
        for (int i = 0; i < 6; i++, chance /= 36) place[i] = letters[chance % 36];
        /* volume_path lies within path. */
        int fd = atoll_open(volume_path, flags | O_RDWR | O_CREAT | O_EXCL, 0600);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return -1;
}

BY_PATH(int, mkstemp, (char *path), make_unique(volume_path, path, 0, 0), (path))
BY_PATH(int, mkstemp64, (char *path), make_unique(volume_path, path, 0, 0), (path))
BY_PATH(int, mkostemp, (char *path, int flags), make_unique(volume_path, path, 0, flags),
        (path, flags))
BY_PATH(int, mkstemps, (char *path, int n), make_unique(volume_path, path, n, 0), (path, n))

static int crosses(int from, int to) {
    if (OURS(from) == OURS(to)) return 0;
    errno = EXDEV;
    return 1;
}

int dup2(int from, int to) {
    if (crosses(from, to)) return -1;
    return OURS(from) ? atoll_dup2(from, to) : REAL(dup2)(from, to);
}

int dup3(int from, int to, int flags) {
    if (crosses(from, to)) return -1;
    return OURS(from) ? atoll_dup3(from, to, flags) : REAL(dup3)(from, to, flags);
}

#define FCNTL(name)                                                                           \
    int name(int fd, int command, ...) {                                                      \
        va_list list;                                                                         \
        va_start(list, command);                                                              \
        long argument = va_arg(list, long);                                                   \
        va_end(list);                                                                         \
        return OURS(fd) ? atoll_fcntl(fd, command, argument)                                  \
                        : REAL(name)(fd, command, argument);                                  \
    }
FCNTL(fcntl)
FCNTL(fcntl64)

BY_FD(int, flock, (int fd, int operation), atoll_flock(fd, operation), (fd, operation))

/* Record locks: no other process has the volume. */
BY_FD(int, lockf, (int fd, int command, off_t n), 0, (fd, command, n))
BY_FD(int, lockf64, (int fd, int command, off64_t n), 0, (fd, command, n))

int isatty(int fd) {
    if (!OURS(fd)) return REAL(isatty)(fd);
    errno = ENOTTY;
    return 0;
}

int ioctl(int fd, unsigned long request, ...) {
    va_list list;
    va_start(list, request);
    void *argument = va_arg(list, void *);
    va_end(list);
    if (!OURS(fd)) return syscall(SYS_ioctl, fd, request, argument);
    errno = ENOTTY;
    return -1;
}

/* ---- reading and writing ---- */

BY_FD(ssize_t, read, (int fd, void *buf, size_t n), atoll_read(fd, buf, n), (fd, buf, n))
BY_FD(ssize_t, write, (int fd, const void *buf, size_t n), atoll_write(fd, buf, n), (fd, buf, n))
BY_FD(ssize_t, pread, (int fd, void *buf, size_t n, off_t at), atoll_pread(fd, buf, n, at),
      (fd, buf, n, at))
BY_FD(ssize_t, pread64, (int fd, void *buf, size_t n, off64_t at), atoll_pread(fd, buf, n, at),
      (fd, buf, n, at))
BY_FD(ssize_t, pwrite, (int fd, const void *buf, size_t n, off_t at),
      atoll_pwrite(fd, buf, n, at), (fd, buf, n, at))
BY_FD(ssize_t, pwrite64, (int fd, const void *buf, size_t n, off64_t at),
      atoll_pwrite(fd, buf, n, at), (fd, buf, n, at))
BY_FD(ssize_t, readv, (int fd, const struct iovec *iov, int n), atoll_readv(fd, iov, n),
      (fd, iov, n))
BY_FD(ssize_t, writev, (int fd, const struct iovec *iov, int n), atoll_writev(fd, iov, n),
      (fd, iov, n))
BY_FD(ssize_t, preadv, (int fd, const struct iovec *iov, int n, off_t at),
      atoll_preadv(fd, iov, n, at), (fd, iov, n, at))
BY_FD(ssize_t, pwritev, (int fd, const struct iovec *iov, int n, off_t at),
      atoll_pwritev(fd, iov, n, at), (fd, iov, n, at))
BY_FD(off_t, lseek, (int fd, off_t at, int whence), atoll_lseek(fd, at, whence), (fd, at, whence))
BY_FD(off64_t, lseek64, (int fd, off64_t at, int whence), atoll_lseek(fd, at, whence),
      (fd, at, whence))
BY_FD(int, fsync, (int fd), atoll_fsync(fd), (fd))
BY_FD(int, fdatasync, (int fd), atoll_fdatasync(fd), (fd))
BY_FD(int, syncfs, (int fd), atoll_syncfs(fd), (fd))
BY_FD(int, ftruncate, (int fd, off_t length), atoll_ftruncate(fd, length), (fd, length))
BY_FD(int, ftruncate64, (int fd, off64_t length), atoll_ftruncate(fd, length), (fd, length))
BY_FD(int, fallocate, (int fd, int mode, off_t at, off_t n), atoll_fallocate(fd, mode, at, n),
      (fd, mode, at, n))
BY_FD(int, fallocate64, (int fd, int mode, off64_t at, off64_t n),
      atoll_fallocate(fd, mode, at, n), (fd, mode, at, n))
BY_FD(int, posix_fallocate, (int fd, off_t at, off_t n), atoll_posix_fallocate(fd, at, n),
      (fd, at, n))
BY_FD(int, posix_fallocate64, (int fd, off64_t at, off64_t n), atoll_posix_fallocate(fd, at, n),
      (fd, at, n))
BY_FD(int, posix_fadvise, (int fd, off_t at, off_t n, int advice), 0, (fd, at, n, advice))
BY_FD(int, posix_fadvise64, (int fd, off64_t at, off64_t n, int advice), 0, (fd, at, n, advice))

ssize_t __read_chk(int fd, void *buf, size_t n, size_t size) {
    if (n > size) abort();
    return read(fd, buf, n);
}

ssize_t __pread_chk(int fd, void *buf, size_t n, off_t at, size_t size) {
    if (n > size) abort();
    return pread(fd, buf, n, at);
}

ssize_t __pread64_chk(int fd, void *buf, size_t n, off64_t at, size_t size) {
    if (n > size) abort();
    return pread(fd, buf, n, at);
}

void *mmap(void *address, size_t n, int protection, int flags, int fd, off_t at) {
    if (OURS(fd) && !(flags & MAP_ANONYMOUS)) {
        errno = ENODEV;
        return MAP_FAILED;
    }
    return (void *)syscall(SYS_mmap, address, n, protection, flags, fd, at);
}

void *mmap64(void *address, size_t n, int protection, int flags, int fd, off64_t at) {
    return mmap(address, n, protection, flags, fd, at);
}

/* ---- names ---- */

BY_PATH(int, mkdir, (const char *path, mode_t mode), atoll_mkdir(volume_path, mode), (path, mode))
BY_DIR(int, mkdirat, (int dirfd, const char *path, mode_t mode),
       atoll_mkdirat(dirfd, volume_path, mode), (dirfd, path, mode))
BY_PATH(int, rmdir, (const char *path), atoll_rmdir(volume_path), (path))
BY_PATH(int, unlink, (const char *path), atoll_unlink(volume_path), (path))
BY_DIR(int, unlinkat, (int dirfd, const char *path, int flags),
       atoll_unlinkat(dirfd, volume_path, flags), (dirfd, path, flags))
BY_PATH(int, remove, (const char *path), atoll_remove(volume_path), (path))
BY_PATH(int, mkfifo, (const char *path, mode_t mode),
        atoll_mknod(volume_path, S_IFIFO | (mode & 07777), 0), (path, mode))
BY_PATH(ssize_t, readlink, (const char *path, char *buf, size_t n),
        atoll_readlink(volume_path, buf, n), (path, buf, n))
BY_DIR(ssize_t, readlinkat, (int dirfd, const char *path, char *buf, size_t n),
       atoll_readlinkat(dirfd, volume_path, buf, n), (dirfd, path, buf, n))
BY_PATH(int, symlink, (const char *target, const char *path), atoll_symlink(target, volume_path),
        (target, path))
BY_DIR(int, symlinkat, (const char *target, int dirfd, const char *path),
       atoll_symlinkat(target, dirfd, volume_path), (target, dirfd, path))

/* Calls with two paths, which have to be on the same side. */
#define TWO_PATHS(name, on_volume, otherwise)                                                 \
    const char *a = ours_at(from_dir, from), *b = ours_at(to_dir, to);                        \
    if (!a && !b) return otherwise;                                                           \
    if (a && b) return on_volume;                                                             \
    errno = EXDEV;                                                                            \
    return -1;

int rename(const char *from, const char *to) {
    enum { from_dir = AT_FDCWD, to_dir = AT_FDCWD };
    TWO_PATHS(rename, atoll_rename(a, b), REAL(rename)(from, to))
}

int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    TWO_PATHS(renameat, atoll_renameat(from_dir, a, to_dir, b),
              REAL(renameat)(from_dir, from, to_dir, to))
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    TWO_PATHS(renameat2, atoll_renameat2(from_dir, a, to_dir, b, flags),
              REAL(renameat2)(from_dir, from, to_dir, to, flags))
}

int link(const char *from, const char *to) {
    enum { from_dir = AT_FDCWD, to_dir = AT_FDCWD };
    TWO_PATHS(link, atoll_link(a, b), REAL(link)(from, to))
}

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags) {
    TWO_PATHS(linkat, atoll_linkat(from_dir, a, to_dir, b, flags),
              REAL(linkat)(from_dir, from, to_dir, to, flags))
}

/* ---- attributes ---- */

BY_PATH(int, stat, (const char *path, struct stat *buf), atoll_stat(volume_path, buf), (path, buf))
BY_PATH(int, lstat, (const char *path, struct stat *buf), atoll_lstat(volume_path, buf),
        (path, buf))
BY_FD(int, fstat, (int fd, struct stat *buf), atoll_fstat(fd, buf), (fd, buf))
BY_DIR(int, fstatat, (int dirfd, const char *path, struct stat *buf, int flags),
       atoll_fstatat(dirfd, volume_path, buf, flags), (dirfd, path, buf, flags))

_Static_assert(sizeof(struct stat) == sizeof(struct stat64), "64-bit files only");
int stat64(const char *path, struct stat64 *buf) { return stat(path, (struct stat *)buf); }
int lstat64(const char *path, struct stat64 *buf) { return lstat(path, (struct stat *)buf); }
int fstat64(int fd, struct stat64 *buf) { return fstat(fd, (struct stat *)buf); }
int fstatat64(int dirfd, const char *path, struct stat64 *buf, int flags) {
    return fstatat(dirfd, path, (struct stat *)buf, flags);
}

/* Programs built with older C libraries call these. */
int __xstat(int version, const char *path, struct stat *buf) {
    (void)version;
    return stat(path, buf);
}
int __lxstat(int version, const char *path, struct stat *buf) {
    (void)version;
    return lstat(path, buf);
}
int __fxstat(int version, int fd, struct stat *buf) {
    (void)version;
    return fstat(fd, buf);
}
int __xstat64(int version, const char *path, struct stat64 *buf) {
    (void)version;
    return stat64(path, buf);
}
int __lxstat64(int version, const char *path, struct stat64 *buf) {
    (void)version;
    return lstat64(path, buf);
}
int __fxstat64(int version, int fd, struct stat64 *buf) {
    (void)version;
    return fstat64(fd, buf);
}

BY_PATH(int, access, (const char *path, int mode), atoll_access(volume_path, mode), (path, mode))
BY_DIR(int, faccessat, (int dirfd, const char *path, int mode, int flags),
       atoll_faccessat(dirfd, volume_path, mode, flags), (dirfd, path, mode, flags))
BY_PATH(int, chmod, (const char *path, mode_t mode), atoll_chmod(volume_path, mode), (path, mode))
BY_FD(int, fchmod, (int fd, mode_t mode), atoll_fchmod(fd, mode), (fd, mode))
BY_DIR(int, fchmodat, (int dirfd, const char *path, mode_t mode, int flags),
       atoll_fchmodat(dirfd, volume_path, mode, flags), (dirfd, path, mode, flags))
BY_PATH(int, chown, (const char *path, uid_t uid, gid_t gid), atoll_chown(volume_path, uid, gid),
        (path, uid, gid))
BY_PATH(int, lchown, (const char *path, uid_t uid, gid_t gid),
        atoll_lchown(volume_path, uid, gid), (path, uid, gid))
BY_FD(int, fchown, (int fd, uid_t uid, gid_t gid), atoll_fchown(fd, uid, gid), (fd, uid, gid))
BY_DIR(int, fchownat, (int dirfd, const char *path, uid_t uid, gid_t gid, int flags),
       atoll_fchownat(dirfd, volume_path, uid, gid, flags), (dirfd, path, uid, gid, flags))
BY_PATH(int, utimes, (const char *path, const struct timeval times[2]),
        atoll_utimes(volume_path, times), (path, times))
BY_DIR(int, utimensat, (int dirfd, const char *path, const struct timespec times[2], int flags),
       atoll_utimensat(dirfd, volume_path, times, flags), (dirfd, path, times, flags))
BY_FD(int, futimens, (int fd, const struct timespec times[2]), atoll_futimens(fd, times),
      (fd, times))
BY_PATH(int, truncate, (const char *path, off_t length), atoll_truncate(volume_path, length),
        (path, length))
BY_PATH(int, truncate64, (const char *path, off64_t length), atoll_truncate(volume_path, length),
        (path, length))
BY_PATH(int, statvfs, (const char *path, struct statvfs *buf), atoll_statvfs(volume_path, buf),
        (path, buf))
BY_FD(int, fstatvfs, (int fd, struct statvfs *buf), atoll_fstatvfs(fd, buf), (fd, buf))

/* ---- directories ---- */

/* A DIR of ours points to this. The C library's begins with a descriptor, which is not negative. */
struct stream {
    int mark;
    ATOLL_DIR *dir;
};

enum { MARK = -0x41746f6c };

static inline ATOLL_DIR *stream(DIR *dir) {
    struct stream *ours = (struct stream *)dir;
    return ours && ours->mark == MARK ? ours->dir : NULL;
}

static DIR *wrap(ATOLL_DIR *dir) {
    struct stream *ours = dir ? malloc(sizeof *ours) : NULL;
    if (!ours) {
        if (dir) atoll_closedir(dir);
        return NULL;
    }
    *ours = (struct stream){MARK, dir};
    return (DIR *)ours;
}

BY_PATH(DIR *, opendir, (const char *path), wrap(atoll_opendir(volume_path)), (path))
BY_FD(DIR *, fdopendir, (int fd), wrap(atoll_fdopendir(fd)), (fd))

#define BY_DIRECTORY(result, name, parameters, on_volume, otherwise)                          \
    result name parameters {                                                                  \
        ATOLL_DIR *volume_dir = stream(dir);                                                  \
        return volume_dir ? on_volume : REAL(name) otherwise;                                 \
    }

BY_DIRECTORY(struct dirent *, readdir, (DIR * dir), atoll_readdir(volume_dir), (dir))
BY_DIRECTORY(struct dirent64 *, readdir64, (DIR * dir),
             (struct dirent64 *)atoll_readdir(volume_dir), (dir))
BY_DIRECTORY(long, telldir, (DIR * dir), atoll_telldir(volume_dir), (dir))
BY_DIRECTORY(int, dirfd, (DIR * dir), atoll_dirfd(volume_dir), (dir))

void seekdir(DIR *dir, long place) {
    ATOLL_DIR *volume_dir = stream(dir);
    volume_dir ? atoll_seekdir(volume_dir, place) : REAL(seekdir)(dir, place);
}

void rewinddir(DIR *dir) {
    ATOLL_DIR *volume_dir = stream(dir);
    volume_dir ? atoll_rewinddir(volume_dir) : REAL(rewinddir)(dir);
}

int closedir(DIR *dir) {
    ATOLL_DIR *volume_dir = stream(dir);
    if (!volume_dir) return REAL(closedir)(dir);
    free(dir);
    return atoll_closedir(volume_dir);
}

int chdir(const char *path) {
    const char *volume_path = ours(path);
    int result = volume_path ? atoll_chdir(volume_path) : REAL(chdir)(path);
    if (result == 0) inside = volume_path != NULL;
    return result;
}

int fchdir(int fd) {
    int result = OURS(fd) ? atoll_fchdir(fd) : REAL(fchdir)(fd);
    if (result == 0) inside = OURS(fd);
    return result;
}

char *getcwd(char *buf, size_t n) {
    if (!inside) return REAL(getcwd)(buf, n);
    char path[4096], whole[8192];
    if (!atoll_getcwd(path, sizeof path)) return NULL;
    int length = snprintf(whole, sizeof whole, "%s%s", prefix, path[1] ? path : "");
    if (!buf) return strdup(whole);
    if (n <= (size_t)length) {
        errno = ERANGE;
        return NULL;
    }
    return memcpy(buf, whole, length + 1);
}

/* ---- stdio: streams over descriptors of the volume ---- */

static ssize_t cookie_read(void *cookie, char *buf, size_t n) {
    return atoll_read((int)(long)cookie, buf, n);
}

static ssize_t cookie_write(void *cookie, const char *buf, size_t n) {
    ssize_t written = atoll_write((int)(long)cookie, buf, n);
    return written < 0 ? 0 : written;
}

static int cookie_seek(void *cookie, off64_t *at, int whence) {
    off_t to = atoll_lseek((int)(long)cookie, *at, whence);
    if (to < 0) return -1;
    *at = to;
    return 0;
}

static int cookie_close(void *cookie) { return atoll_close((int)(long)cookie); }

static FILE *stream_of(int fd, const char *mode) {
    cookie_io_functions_t functions = {cookie_read, cookie_write, cookie_seek, cookie_close};
    FILE *file = fopencookie((void *)(long)fd, mode, functions);
    if (!file) atoll_close(fd);
    return file;
}

/* The flags of open(2) for a mode of fopen(3), or -1. */
static int open_flags(const char *mode) {
    int flags;
    switch (mode[0]) {
    case 'r': flags = 0; break;
    case 'w': flags = O_CREAT | O_TRUNC; break;
    case 'a': flags = O_CREAT | O_APPEND; break;
    default: errno = EINVAL; return -1;
    }
    int both = 0;
    for (const char *c = mode + 1; *c && *c != ','; c++) {
        if (*c == '+') both = 1;
        if (*c == 'x') flags |= O_EXCL;
        if (*c == 'e') flags |= O_CLOEXEC;
    }
    return flags | (both ? O_RDWR : mode[0] == 'r' ? O_RDONLY : O_WRONLY);
}

static FILE *open_stream(const char *volume_path, const char *mode) {
    int flags = open_flags(mode);
    int fd = flags < 0 ? -1 : atoll_open(volume_path, flags, 0666);
    return fd < 0 ? NULL : stream_of(fd, mode);
}

BY_PATH(FILE *, fopen, (const char *path, const char *mode), open_stream(volume_path, mode),
        (path, mode))
BY_PATH(FILE *, fopen64, (const char *path, const char *mode), open_stream(volume_path, mode),
        (path, mode))
BY_FD(FILE *, fdopen, (int fd, const char *mode), stream_of(fd, mode), (fd, mode))
