/* Reading, writing, offsets and attributes of open files. */
#define _GNU_SOURCE
#include "table.h"

#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* The most that Linux moves at once. */
enum { MOVE_MAX = 0x7ffff000, VECTORS_MAX = 1024 };

/* Addresses where no program has anything: the kernel is to say so. */
static bool impossible(const struct iovec *iov) {
    uintptr_t lowest = 1 << 16, end = 1ull << 47, at = (uintptr_t)iov->iov_base;
    return iov->iov_len > 0 && (at < lowest || at >= end || iov->iov_len > end - at);
}

/* Whether these are what the kernel would take, and something to move. */
static bool acceptable(const struct iovec *iov, int count) {
    if (count < 1 || count > VECTORS_MAX) return false;
    size_t total = 0;
    for (int i = 0; i < count; i++) {
        if (impossible(&iov[i]) || iov[i].iov_len > MOVE_MAX - total) return false;
        total += iov[i].iov_len;
    }
    return total > 0;
}

static bool readable(uint32_t flags) { return (flags & O_ACCMODE) != O_WRONLY; }
static bool writable(uint32_t flags) { return (flags & O_ACCMODE) != O_RDONLY; }

/* The answer of a call of ours: a negative result is an error number. */
static ssize_t answer(ssize_t result) {
    if (result >= 0) return result;
    errno = -result;
    return -1;
}

enum direction { READ, WRITE };

static ssize_t move_at(enum direction way, const struct atoll_file *file, uint32_t flags,
                       const struct iovec *iov, int count, off_t at, off_t *end) {
    const struct atoll_backend *by = backend(file, way == WRITE);
    for (;;) {
        ssize_t moved;
        *end = -1;
        if (way == READ)
            moved = by->read(file, iov, count, at);
        else if (flags & O_APPEND)
            moved = by->append(file, iov, count, end);
        else
            moved = by->write(file, iov, count, at);
        if (!left_to_kernel(file->fd, moved)) {
            if (*end < 0 && moved >= 0) *end = at + moved;
            return moved;
        }
        by = &atoll_by_system_calls;
    }
}

/* Reads or writes at the private offset of fd; false if that is not ours to do. */
static bool move(enum direction way, int fd, const struct iovec *iov, int count, ssize_t *result) {
    if (!acceptable(iov, count)) {
        /* Refused, or nothing to move, but for vectors that are long together. */
        if (count > 1 || (count == 1 && impossible(iov))) share(fd);
        return false;
    }
    enter();
    bool locked;
    struct description *d = hold(fd, &locked);
    bool ours = d != NULL;
    if (ours) {
        uint32_t flags = atomic_load_explicit(&d->flags, memory_order_relaxed);
        ours = way == READ ? readable(flags) : writable(flags);
        if (ours) {
            off_t end;
            struct atoll_file file = d->file;
            file.fd = fd;
            *result = move_at(way, &file, flags, iov, count, d->offset, &end);
            if (*result >= 0 && (*result > 0 || way == WRITE)) d->offset = end;
        }
        let_go(d, locked);
    }
    leave();
    return ours;
}

/* The same at a given offset, whoever has the description's own. */
static bool move_there(enum direction way, int fd, const struct iovec *iov, int count, off_t at,
                       ssize_t *result) {
    if (at < 0 || !acceptable(iov, count)) return false;
    struct atoll_file file;
    uint32_t flags;
    enter();
    bool ours = identify(fd, &file, &flags) && (way == READ ? readable(flags) : writable(flags));
    /* The kernel serves files that sync each write. */
    if (ours && way == WRITE && flags & (O_SYNC | O_DSYNC)) ours = false;
    /* Writes at the end whatever the offset, and would move the offset. */
    if (ours && way == WRITE && flags & O_APPEND && backend(&file, true) == &atoll_by_system_calls)
        ours = false;
    if (ours) {
        off_t end;
        *result = move_at(way, &file, flags, iov, count, at, &end);
    }
    leave();
    return ours;
}

static size_t at_once(size_t n) { return n < MOVE_MAX ? n : MOVE_MAX; }

EXPORT ssize_t read(int fd, void *buf, size_t n) {
    struct iovec iov = {buf, at_once(n)};
    ssize_t result;
    if (move(READ, fd, &iov, 1, &result)) return answer(result);
    return REAL(read)(fd, buf, n);
}

EXPORT ssize_t write(int fd, const void *buf, size_t n) {
    struct iovec iov = {(void *)buf, at_once(n)};
    ssize_t result;
    if (move(WRITE, fd, &iov, 1, &result)) return answer(result);
    return REAL(write)(fd, buf, n);
}

EXPORT ssize_t readv(int fd, const struct iovec *iov, int count) {
    ssize_t result;
    if (move(READ, fd, iov, count, &result)) return answer(result);
    return REAL(readv)(fd, iov, count);
}

EXPORT ssize_t writev(int fd, const struct iovec *iov, int count) {
    ssize_t result;
    if (move(WRITE, fd, iov, count, &result)) return answer(result);
    return REAL(writev)(fd, iov, count);
}

EXPORT ssize_t pread64(int fd, void *buf, size_t n, off64_t at) {
    struct iovec iov = {buf, at_once(n)};
    ssize_t result;
    if (move_there(READ, fd, &iov, 1, at, &result)) return answer(result);
    return REAL(pread64)(fd, buf, n, at);
}

EXPORT ssize_t pwrite64(int fd, const void *buf, size_t n, off64_t at) {
    struct iovec iov = {(void *)buf, at_once(n)};
    ssize_t result;
    if (move_there(WRITE, fd, &iov, 1, at, &result)) return answer(result);
    return REAL(pwrite64)(fd, buf, n, at);
}

EXPORT ssize_t preadv64(int fd, const struct iovec *iov, int count, off64_t at) {
    ssize_t result;
    if (move_there(READ, fd, iov, count, at, &result)) return answer(result);
    return REAL(preadv64)(fd, iov, count, at);
}

EXPORT ssize_t pwritev64(int fd, const struct iovec *iov, int count, off64_t at) {
    ssize_t result;
    if (move_there(WRITE, fd, iov, count, at, &result)) return answer(result);
    return REAL(pwritev64)(fd, iov, count, at);
}

/* With flags these are the kernel's; at -1 they use the offset. */
EXPORT ssize_t preadv64v2(int fd, const struct iovec *iov, int count, off64_t at, int flags) {
    if (flags == 0) return at == -1 ? readv(fd, iov, count) : preadv64(fd, iov, count, at);
    if (at == -1) share(fd);
    return REAL(preadv64v2)(fd, iov, count, at, flags);
}

EXPORT ssize_t pwritev64v2(int fd, const struct iovec *iov, int count, off64_t at, int flags) {
    if (flags == 0) return at == -1 ? writev(fd, iov, count) : pwritev64(fd, iov, count, at);
    share(fd);
    return REAL(pwritev64v2)(fd, iov, count, at, flags);
}

/* 64-bit files only, so that both names of a call are one. */
_Static_assert(sizeof(off_t) == sizeof(off64_t), "64-bit files only");
#define ALIAS(result, name, of, ...) \
    EXPORT result name(__VA_ARGS__) __attribute__((alias(#of)));
ALIAS(ssize_t, pread, pread64, int, void *, size_t, off_t)
ALIAS(ssize_t, pwrite, pwrite64, int, const void *, size_t, off_t)
ALIAS(ssize_t, preadv, preadv64, int, const struct iovec *, int, off_t)
ALIAS(ssize_t, pwritev, pwritev64, int, const struct iovec *, int, off_t)
ALIAS(ssize_t, preadv2, preadv64v2, int, const struct iovec *, int, off_t, int)
ALIAS(ssize_t, pwritev2, pwritev64v2, int, const struct iovec *, int, off_t, int)
ALIAS(ssize_t, __read, read, int, void *, size_t)
ALIAS(ssize_t, __write, write, int, const void *, size_t)
ALIAS(ssize_t, __pread64, pread64, int, void *, size_t, off64_t)
ALIAS(ssize_t, __pwrite64, pwrite64, int, const void *, size_t, off64_t)

/* Programs compiled with checks call these instead. */
extern void __chk_fail(void) __attribute__((noreturn, weak));
static void check(size_t n, size_t size) {
    if (n <= size) return;
    if (__chk_fail) __chk_fail();
    abort();
}
EXPORT ssize_t __read_chk(int fd, void *buf, size_t n, size_t size) {
    check(n, size);
    return read(fd, buf, n);
}
EXPORT ssize_t __pread64_chk(int fd, void *buf, size_t n, off64_t at, size_t size) {
    check(n, size);
    return pread64(fd, buf, n, at);
}
ALIAS(ssize_t, __pread_chk, __pread64_chk, int, void *, size_t, off_t, size_t)

/* ---- the offset ---- */

/* The offset that lseek(2) would set, or a negative error number. */
static off_t target(const struct description *d, int fd, off_t at, int whence) {
    off_t from = 0, to;
    switch (whence) {
    case SEEK_SET: break;
    case SEEK_CUR: from = d->offset; break;
    case SEEK_END: {
        struct atoll_file file = d->file;
        file.fd = fd;
        struct statx attr;
        int result = backend(&file, false)->getattr(&file, &attr);
        if (left_to_kernel(fd, result)) result = atoll_by_system_calls.getattr(&file, &attr);
        if (result < 0) return result;
        from = attr.stx_size;
        break;
    }
    /* The kernel asks the server, and moves its own offset, which nobody uses. */
    case SEEK_DATA:
    case SEEK_HOLE: return raw(SYS_lseek, fd, at, whence);
    default: return -EINVAL;
    }
    return __builtin_add_overflow(from, at, &to) || to < 0 ? -EINVAL : to;
}

EXPORT off64_t lseek64(int fd, off64_t at, int whence) {
    enter();
    bool locked;
    struct description *d = hold(fd, &locked);
    off_t to = 0;
    if (d) {
        to = target(d, fd, at, whence);
        if (to >= 0) d->offset = to;
        let_go(d, locked);
    }
    leave();
    return d ? answer(to) : REAL(lseek64)(fd, at, whence);
}
ALIAS(off_t, lseek, lseek64, int, off_t, int)
ALIAS(off_t, __lseek, lseek64, int, off_t, int)

/* ---- attributes, size, durability ---- */

/* Runs `call` of the backend on fd if it is ours and `allowed`. */
#define ON_FILE(fd, writes, allowed, call)                                                    \
    struct atoll_file file;                                                                   \
    uint32_t flags;                                                                           \
    int result = 0;                                                                           \
    enter();                                                                                  \
    bool ours = identify(fd, &file, &flags) && (allowed);                                     \
    if (ours) {                                                                               \
        const struct atoll_backend *by = backend(&file, writes);                              \
        result = by->call;                                                                    \
        if (left_to_kernel(fd, result)) {                                                     \
            by = &atoll_by_system_calls;                                                      \
            result = by->call;                                                                \
        }                                                                                     \
    }                                                                                         \
    leave();                                                                                  \
    if (ours) return answer(result);

static int attributes(int fd, struct statx *attr, bool *is_ours) {
    *is_ours = true;
    ON_FILE(fd, false, true, getattr(&file, attr))
    *is_ours = false;
    return 0;
}

static bool fstat_ours(int fd, struct stat *buf, int *result) {
    struct statx attr;
    bool ours;
    *result = attributes(fd, &attr, &ours);
    if (!ours || *result < 0) return ours;
    memset(buf, 0, sizeof *buf);
    buf->st_dev = makedev(attr.stx_dev_major, attr.stx_dev_minor);
    buf->st_ino = attr.stx_ino;
    buf->st_mode = attr.stx_mode;
    buf->st_nlink = attr.stx_nlink;
    buf->st_uid = attr.stx_uid;
    buf->st_gid = attr.stx_gid;
    buf->st_rdev = makedev(attr.stx_rdev_major, attr.stx_rdev_minor);
    buf->st_size = attr.stx_size;
    buf->st_blksize = attr.stx_blksize;
    buf->st_blocks = attr.stx_blocks;
    buf->st_atim = (struct timespec){attr.stx_atime.tv_sec, attr.stx_atime.tv_nsec};
    buf->st_mtim = (struct timespec){attr.stx_mtime.tv_sec, attr.stx_mtime.tv_nsec};
    buf->st_ctim = (struct timespec){attr.stx_ctime.tv_sec, attr.stx_ctime.tv_nsec};
    return true;
}

_Static_assert(sizeof(struct stat) == sizeof(struct stat64), "one layout");

EXPORT int fstat(int fd, struct stat *buf) {
    int result;
    return fstat_ours(fd, buf, &result) ? result : REAL(fstat)(fd, buf);
}
EXPORT int fstat64(int fd, struct stat64 *buf) {
    int result;
    return fstat_ours(fd, (struct stat *)buf, &result) ? result : REAL(fstat64)(fd, buf);
}

static bool names_descriptor(const char *path, int flags) {
    return flags & AT_EMPTY_PATH && path && path[0] == 0;
}

EXPORT int fstatat(int fd, const char *path, struct stat *buf, int flags) {
    int result;
    if (names_descriptor(path, flags) && fstat_ours(fd, buf, &result)) return result;
    return REAL(fstatat)(fd, path, buf, flags);
}
EXPORT int fstatat64(int fd, const char *path, struct stat64 *buf, int flags) {
    int result;
    if (names_descriptor(path, flags) && fstat_ours(fd, (struct stat *)buf, &result))
        return result;
    return REAL(fstatat64)(fd, path, buf, flags);
}

/* Programs built with older C libraries call these. */
extern int __fxstat(int, int, struct stat *);
extern int __fxstat64(int, int, struct stat64 *);
EXPORT int __fxstat(int version, int fd, struct stat *buf) {
    int result;
    return fstat_ours(fd, buf, &result) ? result : REAL(__fxstat)(version, fd, buf);
}
EXPORT int __fxstat64(int version, int fd, struct stat64 *buf) {
    int result;
    return fstat_ours(fd, (struct stat *)buf, &result) ? result
                                                       : REAL(__fxstat64)(version, fd, buf);
}

EXPORT int statx(int fd, const char *restrict path, int flags, unsigned mask,
                 struct statx *restrict buf) {
    if (names_descriptor(path, flags) && !(mask & ~(STATX_BASIC_STATS | STATX_BTIME))) {
        bool ours;
        int result = attributes(fd, buf, &ours);
        if (ours) return result;
    }
    return REAL(statx)(fd, path, flags, mask, buf);
}

EXPORT int ftruncate64(int fd, off64_t size) {
    ON_FILE(fd, true, size >= 0 && writable(flags), truncate(&file, size))
    return REAL(ftruncate64)(fd, size);
}
ALIAS(int, ftruncate, ftruncate64, int, off_t)

EXPORT int fsync(int fd) {
    ON_FILE(fd, false, true, fsync(&file, 0))
    return REAL(fsync)(fd);
}

EXPORT int fdatasync(int fd) {
    ON_FILE(fd, false, true, fsync(&file, 1))
    return REAL(fdatasync)(fd);
}

EXPORT int fallocate64(int fd, int mode, off64_t at, off64_t length) {
    ON_FILE(fd, true, at >= 0 && length > 0 && writable(flags),
            fallocate(&file, mode, at, length))
    return REAL(fallocate64)(fd, mode, at, length);
}
ALIAS(int, fallocate, fallocate64, int, int, off_t, off_t)
