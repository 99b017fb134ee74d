/* Opening, duplicating and closing, which are the kernel's: the table is told. And calls that use
 * an offset, or close a descriptor, without coming here. */
#define _GNU_SOURCE
#include "table.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- opening ---- */

static int opened_if(int fd) {
    if (fd >= 0) opened(fd);
    return fd;
}

#define MODE                                                                                  \
    mode_t mode = 0;                                                                          \
    if (flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) {                                     \
        va_list list;                                                                         \
        va_start(list, flags);                                                                \
        mode = va_arg(list, mode_t);                                                          \
        va_end(list);                                                                         \
    }
#define OPEN(name)                                                                            \
    EXPORT int name(const char *path, int flags, ...) {                                       \
        MODE;                                                                                 \
        return opened_if(REAL(name)(path, flags, mode));                                      \
    }
#define OPENAT(name)                                                                          \
    EXPORT int name(int dirfd, const char *path, int flags, ...) {                            \
        MODE;                                                                                 \
        return opened_if(REAL(name)(dirfd, path, flags, mode));                               \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

/* Programs compiled with checks call these instead. */
extern int __open_2(const char *, int), __open64_2(const char *, int);
extern int __openat_2(int, const char *, int), __openat64_2(int, const char *, int);

#define OPENS(name, parameters, arguments)                                                    \
    EXPORT int name parameters { return opened_if(REAL(name) arguments); }
OPENS(__open_2, (const char *path, int flags), (path, flags))
OPENS(__open64_2, (const char *path, int flags), (path, flags))
OPENS(__openat_2, (int dirfd, const char *path, int flags), (dirfd, path, flags))
OPENS(__openat64_2, (int dirfd, const char *path, int flags), (dirfd, path, flags))
OPENS(creat, (const char *path, mode_t mode), (path, mode))
OPENS(creat64, (const char *path, mode_t mode), (path, mode))
OPENS(mkstemp, (char *path), (path))
OPENS(mkstemp64, (char *path), (path))
OPENS(mkostemp, (char *path, int flags), (path, flags))
OPENS(mkostemp64, (char *path, int flags), (path, flags))
OPENS(mkstemps, (char *path, int suffix), (path, suffix))
OPENS(mkstemps64, (char *path, int suffix), (path, suffix))
OPENS(mkostemps, (char *path, int suffix, int flags), (path, suffix, flags))
OPENS(mkostemps64, (char *path, int suffix, int flags), (path, suffix, flags))

/* ---- duplicating and closing ---- */

/* The backend's own are nobody else's to close: programs that close whatever may be open find none
 * there. */
static bool is_reserved(int fd) { return fd > 2 && reserved(fd, fd) >= 0; }

EXPORT int close(int fd) {
    if (is_reserved(fd)) {
        errno = EBADF;
        return -1;
    }
    /* Before the kernel does, which may give the number to another thread at once. */
    forget(fd);
    return REAL(close)(fd);
}

EXPORT int dup(int from) {
    before_duplicate(from);
    int to = REAL(dup)(from);
    if (to >= 0) duplicated(from, to);
    return to;
}

static void before_dup2(int from, int to) {
    before_duplicate(from);
    if (from == to) return;
    /* If the call fails, `to` is what it was. */
    share(to);
    forget(to);
}

EXPORT int dup2(int from, int to) {
    if (is_reserved(to)) {
        errno = EBADF;
        return -1;
    }
    before_dup2(from, to);
    int result = REAL(dup2)(from, to);
    if (result >= 0) duplicated(from, to);
    return result;
}

EXPORT int dup3(int from, int to, int flags) {
    if (is_reserved(to)) {
        errno = EBADF;
        return -1;
    }
    before_dup2(from, to);
    int result = REAL(dup3)(from, to, flags);
    if (result >= 0) duplicated(from, to);
    return result;
}

EXPORT int close_range(unsigned first, unsigned last, int flags) {
    if (flags & CLOSE_RANGE_UNSHARE)
        disable();
    else if (flags == 0)
        forget_range(first, last);
    if (flags == 0 && first <= last) {
        for (int own; (own = reserved(first, last)) >= 0; first = own + 1) {
            if ((unsigned)own > first && REAL(close_range)(first, own - 1, 0) < 0) return -1;
            if ((unsigned)own == last) return 0;
        }
    }
    return REAL(close_range)(first, last, flags);
}

EXPORT void closefrom(int first) {
    unsigned from = first < 0 ? 0 : first;
    if (reserved(from, ~0u) >= 0 && close_range(from, ~0u, 0) == 0)
        return;
    forget_range(first < 0 ? 0 : first, ~0u);
    REAL(closefrom)(first);
}

#define FCNTL(name)                                                                           \
    EXPORT int name(int fd, int command, ...) {                                               \
        va_list list;                                                                         \
        va_start(list, command);                                                              \
        long argument = va_arg(list, long);                                                   \
        va_end(list);                                                                         \
        before_fcntl(fd, command, argument);                                                  \
        int result = REAL(name)(fd, command, argument);                                       \
        if (result >= 0) after_fcntl(fd, command, result);                                    \
        return result;                                                                        \
    }

static void before_fcntl(int fd, int command, long argument) {
    switch (command) {
    case F_DUPFD:
    case F_DUPFD_CLOEXEC: before_duplicate(fd); break;
    case F_GETLK:
    case F_SETLK:
    case F_SETLKW:
    case F_OFD_GETLK:
    case F_OFD_SETLK:
    case F_OFD_SETLKW:
        if (argument && ((struct flock *)argument)->l_whence == SEEK_CUR) publish(fd);
        if (argument && ((struct flock *)argument)->l_whence == SEEK_END) refresh(fd);
        break;
    }
}

static void after_fcntl(int fd, int command, int result) {
    if (command == F_DUPFD || command == F_DUPFD_CLOEXEC) duplicated(fd, result);
    if (command == F_SETFL) flags_changed(fd);
}

FCNTL(fcntl)
FCNTL(fcntl64)

EXPORT int lockf64(int fd, int command, off64_t n) {
    publish(fd);
    return REAL(lockf64)(fd, command, n);
}
EXPORT int lockf(int fd, int command, off_t n) __attribute__((alias("lockf64")));

/* ---- streams, which the C library reads and writes by itself ---- */

EXPORT FILE *fdopen(int fd, const char *mode) {
    surrender(fd);
    return REAL(fdopen)(fd, mode);
}

EXPORT DIR *fdopendir(int fd) {
    surrender(fd);
    return REAL(fdopendir)(fd);
}

static void forget_stream(FILE *stream) {
    /* No stream is asked by fileno(3), which sets errno for those without a descriptor. */
    if (stream && !atomic_load(&disabled)) forget(stream->_fileno);
}

EXPORT int fclose(FILE *stream) {
    forget_stream(stream);
    return REAL(fclose)(stream);
}

EXPORT FILE *freopen(const char *restrict path, const char *restrict mode, FILE *restrict stream) {
    forget_stream(stream);
    return REAL(freopen)(path, mode, stream);
}
EXPORT FILE *freopen64(const char *restrict path, const char *restrict mode,
                       FILE *restrict stream) {
    forget_stream(stream);
    return REAL(freopen64)(path, mode, stream);
}

/* ---- what uses offsets, and sizes, in the kernel ---- */

EXPORT int ioctl(int fd, unsigned long request, ...) {
    va_list list;
    va_start(list, request);
    void *argument = va_arg(list, void *);
    va_end(list);
    /* FIONREAD counts from the offset to the end. */
    publish(fd);
    if (request == FIONREAD) refresh(fd);
    return REAL(ioctl)(fd, request, argument);
}

EXPORT ssize_t sendfile64(int to, int from, off64_t *at, size_t n) {
    share(to);
    if (!at) share(from);
    refresh(from);
    return REAL(sendfile64)(to, from, at, n);
}
EXPORT ssize_t sendfile(int to, int from, off_t *at, size_t n)
    __attribute__((alias("sendfile64")));

EXPORT ssize_t splice(int from, off64_t *from_at, int to, off64_t *to_at, size_t n,
                      unsigned flags) {
    if (!from_at) share(from);
    if (!to_at) share(to);
    refresh(from);
    return REAL(splice)(from, from_at, to, to_at, n, flags);
}

EXPORT ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t n,
                               unsigned flags) {
    if (!from_at) share(from);
    if (!to_at) share(to);
    refresh(from);
    return REAL(copy_file_range)(from, from_at, to, to_at, n, flags);
}

/* Descriptors that are sent away. */
static void share_sent(const struct msghdr *message) {
    if (!message || !message->msg_control) return;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part;
         part = CMSG_NXTHDR((struct msghdr *)message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
        int *sent = (int *)CMSG_DATA(part);
        size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof *sent;
        for (size_t i = 0; i < count; i++) share(sent[i]);
    }
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    share_sent(message);
    return REAL(sendmsg)(fd, message, flags);
}

EXPORT int sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags) {
    for (unsigned i = 0; i < count; i++) share_sent(&messages[i].msg_hdr);
    return REAL(sendmmsg)(fd, messages, count, flags);
}
