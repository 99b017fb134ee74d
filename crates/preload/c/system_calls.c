/* The backend that makes the system calls itself. Compiled with ATOLL_CHECK it also finds out
 * whether a file is still what the table took its descriptor for, and dies if not: another
 * backend would work on the wrong file. */
#define _GNU_SOURCE
#include "backend.h"

#include <fcntl.h>

#include "raw.h"

#ifdef ATOLL_CHECK
#include <stdlib.h>
static void check(const struct atoll_file *file) {
    struct atoll_identity now;
    if (raw(SYS_ioctl, file->fd, ATOLL_IDENTIFY, &now) != 0 || (file->handle &&
         (now.ino != file->ino || now.handle != file->handle)))
        abort();
}
#else
static void check(const struct atoll_file *file) { (void)file; }
#endif

static int begin(const char *servers) {
    (void)servers;
    return 0;
}

static void nothing(void) {}

static int reserved(unsigned first, unsigned last) {
    (void)first, (void)last;
    return -1;
}

static int adopt(struct atoll_file *file) {
    file->connection = &atoll_by_system_calls;
    return 0;
}

static void closed(const struct atoll_file *file) { (void)file; }

static ssize_t read_at(const struct atoll_file *file, const struct iovec *iov, int count,
                       off_t at) {
    check(file);
    if (count == 1) return raw(SYS_pread64, file->fd, iov->iov_base, iov->iov_len, at);
    return raw(SYS_preadv, file->fd, iov, count, at, 0);
}

static ssize_t write_at(const struct atoll_file *file, const struct iovec *iov, int count,
                        off_t at) {
    check(file);
    if (count == 1) return raw(SYS_pwrite64, file->fd, iov->iov_base, iov->iov_len, at);
    return raw(SYS_pwritev, file->fd, iov, count, at, 0);
}

/* On a descriptor with O_APPEND the kernel's offset says where the end was. */
static ssize_t append(const struct atoll_file *file, const struct iovec *iov, int count,
                      off_t *end) {
    check(file);
    ssize_t written = raw(SYS_writev, file->fd, iov, count);
    if (written >= 0) *end = raw(SYS_lseek, file->fd, 0, SEEK_CUR);
    return written;
}

static int getattr(const struct atoll_file *file, struct statx *attr) {
    check(file);
    return raw(SYS_statx, file->fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, attr);
}

static int truncate_to(const struct atoll_file *file, off_t size) {
    check(file);
    return raw(SYS_ftruncate, file->fd, size);
}

static int fsync_file(const struct atoll_file *file, int data_only) {
    check(file);
    return raw(data_only ? SYS_fdatasync : SYS_fsync, file->fd);
}

static int allocate(const struct atoll_file *file, int mode, off_t at, off_t length) {
    check(file);
    return raw(SYS_fallocate, file->fd, mode, at, length);
}

const struct atoll_backend atoll_by_system_calls = {
    .begin = begin,
    .before_fork = nothing,
    .after_fork = nothing,
    .forked = nothing,
    .reserved = reserved,
    .adopt = adopt,
    .closed = closed,
    .read = read_at,
    .write = write_at,
    .append = append,
    .getattr = getattr,
    .truncate = truncate_to,
    .fsync = fsync_file,
    .fallocate = allocate,
};
