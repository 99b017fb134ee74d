/* The table of descriptors. See table.h for what it means. */
#define _GNU_SOURCE
#include "table.h"

#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sysmacros.h>

__thread struct thread self __attribute__((tls_model("initial-exec")));
_Atomic bool disabled;

/* ---- slots ---- */

/* One for each descriptor up to the kernel's usual limit; those beyond are left to the kernel. A
 * wrong FOREIGN only costs time, a wrong description would be another file: only `opened`,
 * `duplicated` and an answer of the server make one, and everything that may close takes it out. */
enum { SLOTS = 1 << 20 };
#define UNKNOWN ((struct description *)0)
/* As UNKNOWN, but open(2) has returned it to this process and nothing has used it. */
#define FRESH ((struct description *)1)
#define FOREIGN ((struct description *)2)
static _Atomic(struct description *) slots[SLOTS];
/* No slot from here on has ever been used. */
static _Atomic int slots_used;

static bool is_ours(struct description *slot) { return slot > FOREIGN; }

/* The standard streams are left to the kernel: the C library and other programs use them. */
static bool has_slot(int fd) { return fd > 2 && fd < SLOTS && !self.vforked; }

static void use_slot(int fd) {
    int used = atomic_load(&slots_used);
    while (fd >= used && !atomic_compare_exchange_weak(&slots_used, &used, fd + 1)) {}
}

/* How many forks are in progress. A description that is made meanwhile is shared. */
static _Atomic int forks;

/* ---- locks ---- */

static void futex(_Atomic uint32_t *word, int operation, uint32_t value) {
    raw(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, 0, 0, 0);
}

void lock(_Atomic uint32_t *word) {
    uint32_t free = 0;
    if (atomic_compare_exchange_strong_explicit(word, &free, 1, memory_order_acquire,
                                                memory_order_relaxed))
        return;
    while (atomic_exchange_explicit(word, 2, memory_order_acquire) != 0) futex(word, FUTEX_WAIT, 2);
}

void unlock(_Atomic uint32_t *word) {
    if (atomic_exchange_explicit(word, 0, memory_order_release) == 2) futex(word, FUTEX_WAKE, 1);
}

/* A handler that has interrupted this thread's own call on the description goes on without. */
static bool lock_description(struct description *d) {
    if (self.depth > 1 && atomic_load_explicit(&d->owner, memory_order_relaxed) == &self)
        return false;
    lock(&d->lock);
    atomic_store_explicit(&d->owner, &self, memory_order_relaxed);
    return true;
}

static void unlock_description(struct description *d) {
    atomic_store_explicit(&d->owner, NULL, memory_order_relaxed);
    unlock(&d->lock);
}

/* ---- connections ---- */

static const struct atoll_backend *const carrier =
#ifdef ATOLL_CHECK
    &atoll_by_system_calls;
#else
    &atoll_by_rings;
#endif
/* Whether this process has connections, and of which life. The kernel clears the page in every
 * child with memory of its own, however it was made. */
enum { NEW = 0, REFUSED = 1, FIRST_LIFE = 2 };
static _Atomic int fallback = REFUSED;
/* Lives of connections that this process and its ancestors had: each has its own number. */
static int lives = FIRST_LIFE;
static _Atomic int *connection = &fallback;
static _Atomic uint32_t connection_lock;
/* Whether writes are subject to RLIMIT_FSIZE. */
static _Atomic bool limited;

void limits_changed(void) {
    struct rlimit limit;
    if (raw(SYS_prlimit64, 0, RLIMIT_FSIZE, NULL, &limit) == 0)
        atomic_store(&limited, limit.rlim_cur != RLIM_INFINITY);
}

/* ---- records, which are never given back to the system ---- */

static _Atomic uint32_t pool_lock;
static struct description *pool;

static struct description *new_description(void) {
    enum { CHUNK = 64 };
    lock(&pool_lock);
    if (!pool) {
        long chunk = raw(SYS_mmap, 0, CHUNK * sizeof *pool, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (chunk > 0 || chunk < -4095) {
            struct description *records = (struct description *)chunk;
            for (int i = 0; i < CHUNK; i++) {
                records[i].next_free = pool;
                pool = &records[i];
            }
        }
    }
    struct description *d = pool;
    if (d) pool = d->next_free;
    unlock(&pool_lock);
    return d;
}

static void free_description(struct description *d) {
    lock(&pool_lock);
    d->next_free = pool;
    pool = d;
    unlock(&pool_lock);
}

/* Takes one descriptor's reference away. */
static void release(struct description *d) {
    bool locked = lock_description(d);
    bool last = --d->references == 0;
    if (last) {
        if (d->file.connection && atomic_load(&d->adopted_in) == atomic_load(connection))
            carrier->closed(&d->file);
        atomic_fetch_add(&d->version, 1);
    }
    if (locked) unlock_description(d);
    if (last) free_description(d);
}

/* ---- learning what a descriptor is ---- */

/* Devices of file systems that are not ours, so that each is asked once. */
enum { DEVICES = 16 };
static _Atomic uint64_t foreign_devices[DEVICES];

static bool known_foreign(uint64_t device) {
    for (int i = 0; i < DEVICES; i++)
        if (atomic_load_explicit(&foreign_devices[i], memory_order_relaxed) == device) return true;
    return false;
}

static void remember_foreign(uint64_t device) {
    for (int i = 0; i < DEVICES; i++) {
        uint64_t none = 0;
        if (atomic_compare_exchange_strong(&foreign_devices[i], &none, device)) return;
    }
}

/* The mounts, as `atoll run` describes them: a line for each, which begins with its device in
 * hexadecimal and what it is for. */
static char servers[8192];
enum { MOUNTS = 32 };
static struct {
    dev_t device;
    /* The kernel can read files that are open for looking only without the server, until
     * somebody changes them; or any file, since nobody changes one. */
    bool own, fixed;
} mounts[MOUNTS];
static int mounts_known;

static void learn_mounts(void) {
    const char *text = getenv("ATOLL_SERVERS");
    if (!text || strlen(text) >= sizeof servers) return;
    memcpy(servers, text, strlen(text) + 1);
    for (const char *line = servers; *line && mounts_known < MOUNTS;) {
        char *word;
        mounts[mounts_known].device = strtoull(line, &word, 16);
        mounts[mounts_known].own = strncmp(word, " own ", 5) == 0;
        mounts[mounts_known++].fixed = strncmp(word, " fixed ", 7) == 0;
        line += strcspn(line, "\n");
        if (*line) line++;
    }
}

static bool served(dev_t device) {
#ifdef ATOLL_CHECK
    /* It asks whoever it is. */
    if (!mounts_known) return true;
#endif
    for (int i = 0; i < mounts_known; i++)
        if (mounts[i].device == device) return true;
    return false;
}

static bool is_own(dev_t device) {
    for (int i = 0; i < mounts_known; i++)
        if (mounts[i].device == device) return mounts[i].own;
    return false;
}

/* How many calls on a file there are before it is worth adopting. An adoption costs as much as
 * some two calls that the kernel brings to the server, on a mount of one's own as one, and a
 * hundred that it need not. The calls on a file that is open for looking only there are mostly
 * of the second kind, but for files that are just being written; most are closed after a few. */
#ifdef ATOLL_CHECK
enum { USES_BEFORE_ADOPTION = 0, USES_OF_OWN = 0, USES_OF_LOOKING = 0, USES_OF_FIXED = 0 };
#else
enum { USES_BEFORE_ADOPTION = 2, USES_OF_OWN = 1, USES_OF_LOOKING = 8, USES_OF_FIXED = 128 };
#endif

static uint32_t uses_before_adoption(dev_t device, long flags) {
    for (int i = 0; i < mounts_known; i++) {
        if (mounts[i].device != device) continue;
        if (mounts[i].fixed) return USES_OF_FIXED;
        if (mounts[i].own) return (flags & O_ACCMODE) == O_RDONLY ? USES_OF_LOOKING : USES_OF_OWN;
    }
    return USES_BEFORE_ADOPTION;
}

/* Asks the server. */
static bool ask_identity(int fd, struct atoll_file *file) {
    struct atoll_identity identity;
    long result = raw(SYS_ioctl, fd, ATOLL_IDENTIFY, &identity);
    if (result == -ENOTTY || result == -EINVAL || result == -ENOSYS) remember_foreign(file->device);
    if (result < 0 || identity.magic != ATOLL_MAGIC || identity.version != ATOLL_VERSION)
        return false;
    file->session = identity.session;
    file->ino = identity.ino;
    file->handle = identity.handle;
    file->token[0] = identity.token[0];
    file->token[1] = identity.token[1];
    file->access = -1;
    return true;
}

/* Whether fd is a file on one of our mounts. Regular files only, so that no driver gets to see a
 * request it may take for one of its own. The server is asked when the file is used more often. */
static bool ask(int fd, struct atoll_file *file) {
    struct statx attr;
    const int how = AT_EMPTY_PATH | AT_STATX_DONT_SYNC;
    if (raw(SYS_statx, fd, "", how, STATX_TYPE | STATX_INO, &attr) < 0)
        return false;
    /* FUSE's devices have no major number. */
    if (!S_ISREG(attr.stx_mode) || attr.stx_dev_major != 0) return false;
    dev_t device = makedev(attr.stx_dev_major, attr.stx_dev_minor);
    if (!served(device) || known_foreign(device)) return false;
    memset(file, 0, sizeof *file);
    file->device = device;
    file->ino = attr.stx_ino;
    file->fd = fd;
#ifdef ATOLL_CHECK
    return ask_identity(fd, file);
#else
    return true;
#endif
}

/* The content of the slot of fd, after the server has been asked if need be. */
static struct description *look(int fd) {
    for (;;) {
        struct description *slot = atomic_load_explicit(&slots[fd], memory_order_acquire);
        if (slot != UNKNOWN && slot != FRESH) return slot;
        struct description *made = FOREIGN;
        struct atoll_file file;
        long flags, offset;
        if (!atomic_load(&disabled) && ask(fd, &file) &&
            (flags = raw(SYS_fcntl, fd, F_GETFL)) >= 0 &&
            (offset = raw(SYS_lseek, fd, 0, SEEK_CUR)) >= 0 && (made = new_description())) {
            /* Files that sync each write, or pass caches by, are the kernel's to serve. */
            bool plain = !(flags & (O_SYNC | O_DSYNC | O_DIRECT));
            atomic_fetch_add(&made->version, 1);
            made->references = 1;
            made->file = file;
            made->offset = offset;
            made->worth = uses_before_adoption(file.device, flags);
            atomic_store(&made->uses, 0);
            atomic_store(&made->mapped, false);
            atomic_store(&made->adopted_in, 0);
            atomic_store(&made->again, false);
            atomic_store(&made->flags, flags);
            atomic_store(&made->private_offset, slot == FRESH && plain);
            atomic_fetch_add(&made->version, 1);
        }
        if (!made) made = FOREIGN;
        use_slot(fd);
        if (!atomic_compare_exchange_strong(&slots[fd], &slot, made)) {
            if (is_ours(made)) release(made);
            continue;
        }
        /* Either this sees a fork that has begun, or the fork sees the slot. */
        if (is_ours(made) && atomic_load(&forks) > 0) share(fd);
        return made;
    }
}

/* Makes the file known to this process's connection, if it is used often enough to be worth that. A
 * connection costs as much as some ten calls by the kernel. */
#ifdef ATOLL_CHECK
enum { USES_BEFORE_CONNECTION = 0 };
#else
enum { USES_BEFORE_CONNECTION = 8 };
#endif
static int attach(void);

/* Learns by what fd can be adopted. On a mount of one's own the server lets it be by what the
 * kernel knows. */
static bool know(int fd, struct atoll_file *file) {
    struct statx attr;
    long flags;
    if (!is_own(file->device)) return ask_identity(fd, file);
    if (raw(SYS_statx, fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, &attr) < 0 ||
        !(attr.stx_mask & STATX_INO) ||
        makedev(attr.stx_dev_major, attr.stx_dev_minor) != file->device ||
        (flags = raw(SYS_fcntl, fd, F_GETFL)) < 0 || flags & O_PATH)
        return false;
    file->ino = attr.stx_ino;
    file->access = flags & O_ACCMODE;
    return file->access != O_ACCMODE;
}

static void adopt(struct description *d, int fd) {
    int life = atomic_load_explicit(connection, memory_order_acquire);
    if (life == REFUSED || self.depth > 1 || atomic_load(&d->mapped)) return;
    if (life != NEW && atomic_load_explicit(&d->adopted_in, memory_order_relaxed) == life &&
        !atomic_load_explicit(&d->again, memory_order_relaxed))
        return;
    static _Atomic long uses;
    long all = atomic_fetch_add_explicit(&uses, 1, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&d->uses, 1, memory_order_relaxed) < d->worth) return;
    if (life == NEW && all < USES_BEFORE_CONNECTION) return;
    if (life == NEW && (life = attach()) == REFUSED) return;
    if (!lock_description(d)) return;
    /* Nobody closes it meanwhile: that takes the reference away first, and for this the lock. */
    bool again = atomic_exchange(&d->again, false);
    if (atomic_load(&slots[fd]) == d && (atomic_load(&d->adopted_in) != life || again) &&
        !atomic_load(&d->mapped)) {
        struct atoll_file file = d->file;
        if (again && file.connection && atomic_load(&d->adopted_in) == life)
            carrier->closed(&file);
        file.fd = fd;
        file.connection = NULL;
        /* Whose reads set no time of last access, the kernel says with each read, and it alone. */
        if (!(atomic_load(&d->flags) & O_NOATIME) && know(fd, &file)) carrier->adopt(&file);
        atomic_fetch_add(&d->version, 1);
        d->file = file;
        atomic_fetch_add(&d->version, 1);
        atomic_store(&d->adopted_in, life);
    }
    unlock_description(d);
}

bool identify(int fd, struct atoll_file *file, uint32_t *flags) {
    if (!has_slot(fd) || atomic_load_explicit(&disabled, memory_order_relaxed)) return false;
    for (;;) {
        struct description *d = look(fd);
        if (!is_ours(d)) return false;
        adopt(d, fd);
        uint32_t before = atomic_load_explicit(&d->version, memory_order_acquire);
        *file = d->file;
        *flags = atomic_load_explicit(&d->flags, memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&d->version, memory_order_relaxed) == before &&
            atomic_load_explicit(&slots[fd], memory_order_relaxed) == d) {
            file->fd = fd;
            return true;
        }
    }
}

struct description *hold(int fd, bool *locked) {
    if (!has_slot(fd) || atomic_load_explicit(&disabled, memory_order_relaxed)) return NULL;
    for (;;) {
        struct description *d = look(fd);
        if (!is_ours(d) || !atomic_load_explicit(&d->private_offset, memory_order_relaxed))
            return NULL;
        adopt(d, fd);
        *locked = lock_description(d);
        if (atomic_load_explicit(&slots[fd], memory_order_relaxed) == d &&
            atomic_load_explicit(&d->private_offset, memory_order_relaxed))
            return d;
        if (*locked) unlock_description(d);
    }
}

void let_go(struct description *d, bool locked) {
    if (locked) unlock_description(d);
}

static int attach(void) {
    lock(&connection_lock);
    int state = atomic_load(connection);
    if (state == NEW) {
        state = carrier->begin(servers) < 0 ? REFUSED : lives++;
        atomic_store(connection, state);
    }
    unlock(&connection_lock);
    return state;
}

bool left_to_kernel(int fd, ssize_t result) {
    if (__builtin_expect(result != ATOLL_BY_KERNEL && result != ATOLL_CLOSED, 1)) return false;
    struct description *d = result == ATOLL_CLOSED ? atomic_load(&slots[fd]) : UNKNOWN;
    if (is_ours(d)) atomic_store(&d->again, true);
    return true;
}

bool connected(void) { return atomic_load(connection) >= FIRST_LIFE; }

int reserved(unsigned first, unsigned last) {
    return self.vforked ? -1 : carrier->reserved(first, last);
}

const struct atoll_backend *backend(const struct atoll_file *file, bool writes) {
    if (!file->connection || self.depth > 1 ||
        (writes && atomic_load_explicit(&limited, memory_order_relaxed)))
        return &atoll_by_system_calls;
    return carrier;
}

/* ---- what happens to descriptors ---- */

void opened(int fd) {
    if (!has_slot(fd)) return;
    use_slot(fd);
    struct description *before = atomic_exchange(&slots[fd], FRESH);
    /* The descriptor was closed by what does not come here. */
    if (is_ours(before)) release(before);
}

void forget(int fd) {
    if (!has_slot(fd)) return;
    if (atomic_load_explicit(&slots[fd], memory_order_relaxed) == UNKNOWN) return;
    enter();
    struct description *before = atomic_exchange(&slots[fd], UNKNOWN);
    if (is_ours(before)) release(before);
    leave();
}

void forget_range(unsigned first, unsigned last) {
    unsigned used = atomic_load(&slots_used);
    for (unsigned fd = first; fd <= last && fd < used; fd++) forget(fd);
}

void before_duplicate(int from) {
    if (!has_slot(from) || atomic_load(&disabled)) return;
    enter();
    look(from);
    leave();
}

void mapped(int fd) {
    if (!has_slot(fd) || atomic_load(&disabled)) return;
    enter();
    struct description *d = look(fd);
    if (is_ours(d) && lock_description(d)) {
        if (atomic_load(&slots[fd]) == d) {
            atomic_store(&d->mapped, true);
            atomic_fetch_add(&d->version, 1);
            d->file.connection = NULL;
            atomic_fetch_add(&d->version, 1);
        }
        unlock_description(d);
    }
    leave();
    /* The kernel lets a mapping be used up to the length that it knows. */
    refresh(fd);
}

/* Has the kernel ask the server how long the file is, whichever process has changed it and
 * whatever this one knows of the descriptor. A kernel whose attributes are still true asks nobody.
 * One that is told to forget some meanwhile passes over the answer, and is to ask again. */
void refresh(int fd) {
    enum { ATTEMPTS = 100 };
    struct statx known, true_now;
    if (!mounts_known || fd < 0) return;
    if (raw(SYS_statx, fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &known) < 0 ||
        !S_ISREG(known.stx_mode))
        return;
    dev_t device = makedev(known.stx_dev_major, known.stx_dev_minor);
    bool asks = false;
    for (int i = 0; i < mounts_known; i++)
        if (mounts[i].device == device) asks = !mounts[i].fixed;
    for (int i = 0; asks && i < ATTEMPTS; i++)
        asks = raw(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_SIZE | STATX_MTIME, &true_now) == 0 &&
               raw(SYS_statx, fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_SIZE,
                   &known) == 0 &&
               known.stx_size != true_now.stx_size;
}

void duplicated(int from, int to) {
    if (from == to || self.vforked) return;
    if (!has_slot(to) || !has_slot(from)) {
        share(from);
        forget(to);
        return;
    }
    enter();
    use_slot(to);
    struct description *d = atomic_load(&slots[from]);
    if (d == FRESH) d = UNKNOWN;
    if (is_ours(d)) {
        struct description *found = d;
        bool locked = lock_description(d);
        if (atomic_load(&slots[from]) == d)
            d->references++;
        else
            d = UNKNOWN;
        if (locked) unlock_description(found);
    }
    struct description *before = atomic_exchange(&slots[to], d);
    if (is_ours(before)) release(before);
    leave();
}

/* Tells the kernel the offset of fd, and unless it is to stay private hands it over. */
static void make_shared(int fd, bool keep_private) {
    struct description *d = atomic_load(&slots[fd]);
    if (d == FRESH && !keep_private)
        atomic_compare_exchange_strong(&slots[fd], &d, UNKNOWN);
    d = atomic_load(&slots[fd]);
    if (!is_ours(d) || !atomic_load(&d->private_offset)) return;
    bool locked = lock_description(d);
    if (atomic_load(&slots[fd]) == d && atomic_load(&d->private_offset)) {
        raw(SYS_lseek, fd, d->offset, SEEK_SET);
        if (!keep_private) atomic_store(&d->private_offset, false);
    }
    if (locked) unlock_description(d);
}

void share(int fd) {
    if (!has_slot(fd)) return;
    enter();
    make_shared(fd, false);
    leave();
}

void publish(int fd) {
    if (!has_slot(fd) || !is_ours(atomic_load(&slots[fd]))) return;
    enter();
    make_shared(fd, true);
    leave();
}

void surrender(int fd) {
    if (!has_slot(fd)) return;
    share(fd);
    enter();
    use_slot(fd);
    struct description *before = atomic_exchange(&slots[fd], FOREIGN);
    if (is_ours(before)) release(before);
    leave();
}

void flags_changed(int fd) {
    if (!has_slot(fd)) return;
    struct description *d = atomic_load(&slots[fd]);
    if (!is_ours(d)) return;
    long flags = raw(SYS_fcntl, fd, F_GETFL);
    if (flags < 0) return;
    if ((atomic_exchange(&d->flags, flags) ^ flags) & O_NOATIME) atomic_store(&d->again, true);
    if (flags & (O_SYNC | O_DSYNC | O_DIRECT)) share(fd);
}

static void for_all(bool keep_private) {
    if (self.vforked) return;
    enter();
    int used = atomic_load(&slots_used);
    for (int fd = 3; fd < used; fd++) make_shared(fd, keep_private);
    leave();
}

void publish_all(void) { for_all(true); }

void before_fork(void) {
    if (self.vforked) return;
    atomic_fetch_add(&forks, 1);
    for_all(false);
}

void after_fork(void) {
    if (!self.vforked) atomic_fetch_sub(&forks, 1);
}

void disable(void) {
    if (self.vforked) return;
    /* Also against descriptions that other threads are making. */
    atomic_fetch_add(&forks, 1);
    for_all(false);
    atomic_store(&disabled, true);
}

/* ---- fork(3) ---- */

/* These locks are taken over fork, so that the child finds what is under them whole. Handlers of
 * pthread_atfork(3) that were there before ours run in between: what they call takes none of
 * them, in a call within a call. */
void before_copy(void) {
    if (self.vforked) return;
    before_fork();
    enter();
    lock(&connection_lock);
    carrier->before_fork();
    lock(&mappings_lock);
}

void after_copy(void) {
    if (self.vforked) return;
    unlock(&mappings_lock);
    carrier->after_fork();
    unlock(&connection_lock);
    after_fork();
    leave();
}

/* The other locks may be held by threads that are not here: one that adopts a file waits for the
 * server meanwhile. The data that they guard is made anew, or read again before use. */
void after_copy_in_child(void) {
    if (self.vforked) return;
    unlock(&mappings_lock);
    unlock(&connection_lock);
    atomic_store(&pool_lock, 0);
    pool = NULL;
    int used = atomic_load(&slots_used);
    for (int fd = 3; fd < used; fd++) {
        struct description *d = atomic_load(&slots[fd]);
        if (!is_ours(d)) continue;
        atomic_store(&d->owner, NULL);
        atomic_store(&d->lock, 0);
        /* Until it is adopted here. */
        d->file.connection = NULL;
    }
    atomic_store(&forks, 0);
    carrier->forked();
    leave();
}

__attribute__((constructor)) static void start(void) {
    long page = raw(SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool mapped = page > 0 || page < -4095;
    if (mapped && raw(SYS_madvise, page, 4096, MADV_WIPEONFORK) == 0)
        connection = (_Atomic int *)page;
    learn_mounts();
    limits_changed();
    /* By name, so that another C library, which this one's pthread_atfork(3) does not know, can
     * load this file: its programs make system calls only. */
    int (*register_handlers)(void (*)(void), void (*)(void), void (*)(void), void *) =
        dlsym(RTLD_DEFAULT, "__register_atfork");
    if (!register_handlers ||
        register_handlers(before_copy, after_copy, after_copy_in_child, NULL) != 0)
        atomic_store(&disabled, true);
}
