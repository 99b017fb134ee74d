/* Shared mappings of files that a server serves: what is mapped is memory of the server's, which
 * is the file's content for everybody while anybody has it. Private ones are the kernel's, as
 * ever.
 *
 * The kernel keeps such a mapping over fork, and takes it down at exec, exit and munmap. The
 * table here says what msync(2) is to make durable and what mremap(2) may make larger. */
#define _GNU_SOURCE
#include "table.h"

#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

struct mapping {
    uintptr_t start, end;
    off_t at; /* of `start` in the file */
    struct atoll_file file;
    struct atoll_map map;
    struct mapping *next;
};

_Atomic uint32_t mappings_lock;
static struct mapping *mappings, *pool;
static _Atomic bool any;

enum { PAGE = 4096 };

static size_t whole_pages(size_t n) { return (n + PAGE - 1) & ~(size_t)(PAGE - 1); }

/* ---- the table; `mappings_lock` is held ---- */

static struct mapping *new_mapping(void) {
    enum { CHUNK = 16 };
    if (!pool) {
        long chunk = raw(SYS_mmap, 0, CHUNK * sizeof *pool, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if ((unsigned long)chunk >= -4095ul) return NULL;
        struct mapping *records = (struct mapping *)chunk;
        for (int i = 0; i < CHUNK; i++) {
            records[i].next = pool;
            pool = &records[i];
        }
    }
    struct mapping *m = pool;
    pool = m->next;
    return m;
}

/* Something else is at these addresses now. */
static void cut(uintptr_t start, uintptr_t end) {
    for (struct mapping **at = &mappings, *m; (m = *at);) {
        if (m->end <= start || m->start >= end) {
            at = &m->next;
            continue;
        }
        if (m->start < start && m->end > end) {
            struct mapping *after = new_mapping();
            if (after) {
                *after = *m;
                after->at += end - m->start;
                after->start = end;
                m->next = after;
            }
            m->end = start;
        } else if (m->start < start) {
            m->end = start;
        } else if (m->end > end) {
            m->at += end - m->start;
            m->start = end;
        } else {
            *at = m->next;
            m->next = pool;
            pool = m;
            continue;
        }
        at = &m->next;
    }
}

static void forget_mappings(uintptr_t start, size_t length) {
    if (!atomic_load_explicit(&any, memory_order_relaxed) || self.vforked) return;
    if (enter() == 1) {
        lock(&mappings_lock);
        cut(start, start + whole_pages(length));
        unlock(&mappings_lock);
    }
    leave();
}

/* The first mapping that has addresses from `start` to `end`, copied. */
static bool find(uintptr_t start, uintptr_t end, struct mapping *found) {
    struct mapping *first = NULL;
    for (struct mapping *m = mappings; m; m = m->next)
        if (m->end > start && m->start < end && (!first || m->start < first->start)) first = m;
    if (first) *found = *first;
    return first != NULL;
}

/* ---- asking the server ---- */

/* Asks at the server's socket. A descriptor for ATOLL_ASK_MEMORY, 0 for ATOLL_ASK_SYNC, or
 * negative. */
static long ask_server(uint8_t kind, const struct atoll_map *map) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (map->address_length == 0 || map->address_length >= sizeof address.sun_path) return -ENODEV;
    memcpy(address.sun_path, map->address, map->address_length);
    struct atoll_ask ask = {ATOLL_CONTROL_MAGIC, ATOLL_CONTROL_VERSION, kind, {0}, {0}};
    memcpy(ask.token, map->token, sizeof ask.token);
    long fd = raw(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) return fd;
    struct timeval wait = {.tv_sec = 30};
    raw(SYS_setsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    long result = raw(SYS_connect, fd, &address, sizeof address);
    if (result >= 0) result = raw(SYS_sendto, fd, &ask, sizeof ask, MSG_NOSIGNAL, 0, 0);
    if (result >= 0) {
        struct atoll_answer answer;
        union {
            struct cmsghdr header;
            char space[CMSG_SPACE(sizeof(int))];
        } control;
        struct iovec place = {&answer, sizeof answer};
        struct msghdr received = {.msg_iov = &place, .msg_iovlen = 1};
        do {
            received.msg_control = &control;
            received.msg_controllen = sizeof control;
            result = raw(SYS_recvmsg, fd, &received, MSG_CMSG_CLOEXEC);
        } while (result == -EINTR);
        int memory = -1;
        struct cmsghdr *part = result > 0 ? CMSG_FIRSTHDR(&received) : NULL;
        if (part && part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS &&
            part->cmsg_len == CMSG_LEN(sizeof memory))
            memcpy(&memory, CMSG_DATA(part), sizeof memory);
        bool granted = result == sizeof answer && answer.magic == ask.magic &&
                       answer.version == ask.version && answer.status == ATOLL_ANSWER_GRANTED;
        if (granted && kind == ATOLL_ASK_MEMORY && memory >= 0)
            result = memory;
        else {
            if (memory >= 0) raw(SYS_close, memory);
            /* It was let go of, or it is another server; or nobody answers. */
            result = granted && kind == ATOLL_ASK_SYNC ? 0 : result > 0 ? -ESTALE : -ENODEV;
        }
    }
    raw(SYS_close, fd);
    return result;
}

/* The memory of the first of `length` bytes of fd from `at` on, of as many as `map` says then: a
 * descriptor, a negative error number, or ATOLL_BY_KERNEL where there is no server. */
static long memory_of(int fd, off_t at, size_t length, struct atoll_map *map) {
    long memory = -ENODEV;
    /* Nobody else may have it mapped, and the server be letting go of it just now. */
    for (int i = 0; i < 3; i++) {
        memset(map, 0, sizeof *map);
        map->magic = ATOLL_MAGIC;
        map->version = ATOLL_VERSION;
        map->offset = at;
        map->length = length;
        map->writable = ATOLL_MAP_PARTS;
        long result = raw(SYS_ioctl, fd, ATOLL_MAP, map);
        if (result == -ENOTTY || result == -ENOSYS || result == -EINVAL) return ATOLL_BY_KERNEL;
        if (result < 0) return result;
        memory = ask_server(ATOLL_ASK_MEMORY, map);
        if (memory != -ESTALE) break;
    }
    /* Not to be coherent in silence would be worse. */
    return memory == -ENOMEM || memory == -EMFILE || memory >= 0 ? memory : -ENODEV;
}

/* ---- the calls ---- */

static void *address_or_error(long result) {
    if (result < 0 && result >= -4095) {
        errno = -result;
        return MAP_FAILED;
    }
    return (void *)result;
}

/* Notes that `length` bytes are mapped at `address`; false without memory for that. */
static bool keep(struct mapping *made, long address, size_t length) {
    made->start = address;
    made->end = made->start + whole_pages(length);
    lock(&mappings_lock);
    atomic_store(&any, true);
    cut(made->start, made->end);
    struct mapping *kept = new_mapping();
    if (kept) {
        *kept = *made;
        kept->next = mappings;
        mappings = kept;
    }
    unlock(&mappings_lock);
    return kept != NULL;
}

/* Maps the memory of `made`, a descriptor, for `length` bytes at `address`, and what of them is in
 * other memories from those. */
static long map_parts(struct mapping *made, long memory, void *address, size_t length,
                      int protection, int flags) {
    /* MAP_SHARED_VALIDATE's flags are for file systems that know them. */
    long start = raw(SYS_mmap, address, length, protection, flags, memory, made->at);
    raw(SYS_close, memory);
    if (start < 0 && start >= -4095) return start;
    long result = start;
    size_t done = 0;
    while (result >= 0 || result < -4095) {
        size_t left = length - done, part = made->map.length;
        if (part == 0 || part > left) part = left;
        if (!keep(made, start + done, part)) result = -ENOMEM;
        done += part;
        if (result == -ENOMEM || done == length) break;
        /* In place of what the first one shows there. */
        made->at += part;
        memory = memory_of(made->file.fd, made->at, length - done, &made->map);
        result = memory;
        if (memory == ATOLL_BY_KERNEL) result = -ENODEV;
        if (memory < 0) break;
        result = raw(SYS_mmap, start + done, length - done, protection,
                     (flags & ~MAP_FIXED_NOREPLACE) | MAP_FIXED, memory, made->at);
        raw(SYS_close, memory);
    }
    if (result >= 0 || result < -4095) return start;
    raw(SYS_munmap, start, length);
    lock(&mappings_lock);
    cut(start, start + whole_pages(length));
    unlock(&mappings_lock);
    return result;
}

/* Maps the server's memory; false if that is not ours to do. */
static bool map_ours(void *address, size_t length, int protection, int flags, int fd, off_t at,
                     long *result) {
    struct atoll_file file;
    uint32_t open_flags;
    bool ours = false;
    if (enter() == 1 && identify(fd, &file, &open_flags)) {
        int access = open_flags & O_ACCMODE;
        struct mapping made = {.file = file, .at = at};
        long memory = ATOLL_BY_KERNEL;
        /* The kernel says what is wrong with the others. */
        if (access == O_RDWR || (access == O_RDONLY && !(protection & PROT_WRITE)))
            memory = memory_of(fd, at, length, &made.map);
        ours = memory != ATOLL_BY_KERNEL;
        *result = memory;
        if (memory >= 0) *result = map_parts(&made, memory, address, length, protection, flags);
    }
    leave();
    return ours;
}

EXPORT void *mmap64(void *address, size_t length, int protection, int flags, int fd, off64_t at) {
    int type = flags & MAP_TYPE;
    long result;
    bool shared = type == MAP_SHARED || type == MAP_SHARED_VALIDATE;
    if (fd >= 0 && !(flags & MAP_ANONYMOUS) && shared && length > 0 && at >= 0 && at % PAGE == 0 &&
        map_ours(address, length, protection, flags, fd, at, &result))
        return address_or_error(result);
    /* The kernel drops the pages that its own writes make stale. */
    if (fd >= 0 && !(flags & MAP_ANONYMOUS)) mapped(fd);
    result = raw(SYS_mmap, address, length, protection, flags, fd, at);
    if (result >= 0 || result < -4095) forget_mappings(result, length);
    return address_or_error(result);
}
EXPORT void *mmap(void *, size_t, int, int, int, off_t) __attribute__((alias("mmap64")));

EXPORT int munmap(void *address, size_t length) {
    long result = raw(SYS_munmap, address, length);
    if (result == 0) forget_mappings((uintptr_t)address, length);
    if (result == 0) return 0;
    errno = -result;
    return -1;
}

/* Whether the descriptor that a mapping was made of is still of the same file. */
static bool still_open(const struct mapping *m) {
    struct atoll_file now;
    uint32_t flags;
    return identify(m->file.fd, &now, &flags) && now.ino == m->file.ino &&
           now.session == m->file.session && now.device == m->file.device;
}

EXPORT void *mremap(void *old, size_t length, size_t new_length, int flags, ...) {
    va_list list;
    va_start(list, flags);
    void *to = va_arg(list, void *);
    va_end(list);
    struct mapping m;
    bool ours = false;
    long refused = 0;
    if (atomic_load_explicit(&any, memory_order_relaxed) && enter() == 1) {
        lock(&mappings_lock);
        ours = find((uintptr_t)old, (uintptr_t)old + 1, &m);
        unlock(&mappings_lock);
        if (ours) {
            m.at += (uintptr_t)old - m.start;
            if (new_length > length) {
                struct atoll_map map = {.magic = ATOLL_MAGIC, .version = ATOLL_VERSION,
                                        .offset = m.at, .length = new_length};
                refused = still_open(&m) ? raw(SYS_ioctl, m.file.fd, ATOLL_MAP, &map) : -ENOMEM;
                /* It is mapped, and so has the same token. */
                if (refused == 0 && memcmp(map.token, m.map.token, sizeof map.token) != 0)
                    refused = -ENOMEM;
            }
        }
        leave();
    } else if (atomic_load_explicit(&any, memory_order_relaxed)) {
        leave();
    }
    if (refused < 0) return address_or_error(-ENOMEM);
    long result = raw(SYS_mremap, old, length, new_length, flags, to);
    if (result < 0 && result >= -4095) return address_or_error(result);
    if (!(flags & MREMAP_DONTUNMAP)) forget_mappings((uintptr_t)old, length);
    forget_mappings(result, new_length);
    if (ours && enter() == 1) {
        lock(&mappings_lock);
        struct mapping *kept = new_mapping();
        if (kept) {
            *kept = m;
            kept->start = result;
            kept->end = kept->start + whole_pages(new_length);
            kept->next = mappings;
            mappings = kept;
        }
        unlock(&mappings_lock);
        leave();
    } else if (ours) {
        leave();
    }
    return (void *)result;
}

EXPORT int msync(void *address, size_t length, int flags) {
    long result = raw(SYS_msync, address, length, flags);
    uintptr_t at = (uintptr_t)address, end = at + whole_pages(length);
    struct mapping m;
    bool found = atomic_load_explicit(&any, memory_order_relaxed) && flags & MS_SYNC;
    while (result == 0 && found) {
        enter();
        lock(&mappings_lock);
        found = find(at, end, &m);
        unlock(&mappings_lock);
        if (found) {
            result = still_open(&m) ? raw(SYS_fsync, m.file.fd)
                                    : ask_server(ATOLL_ASK_SYNC, &m.map);
            if (result == -ESTALE || result == -ENODEV) result = -EIO;
            at = m.end;
        }
        leave();
    }
    if (result == 0) return 0;
    errno = -result;
    return -1;
}
