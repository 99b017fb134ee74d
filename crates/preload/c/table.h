/* Which descriptors are open files of ours, and where their offsets are kept. */
#pragma once
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "backend.h"
#include "raw.h"

#define EXPORT __attribute__((visibility("default")))

/* The C library's own function, found once. */
#define REAL(name)                                                                            \
    ({                                                                                        \
        static _Atomic(__typeof__(&name)) found;                                              \
        __typeof__(&name) real = atomic_load_explicit(&found, memory_order_relaxed);          \
        if (__builtin_expect(!real, 0)) {                                                     \
            real = (__typeof__(&name))dlsym(RTLD_NEXT, #name);                                \
            atomic_store_explicit(&found, real, memory_order_relaxed);                        \
        }                                                                                     \
        real;                                                                                 \
    })

/* An open file description of ours, as this process knows it.
 *
 * Its offset is *private* while no other process can have the description and nothing in this one
 * uses it but through the interposer; only what open(2) and its like have returned here can be.
 * Otherwise it is *shared*, the offset is the kernel's, and calls that use it are system calls.
 * A description that has become shared stays so. */
struct description {
    _Atomic uint32_t lock; /* of offset, references, mode */
    struct thread *_Atomic owner;
    uint32_t references; /* descriptors */
    _Atomic bool private_offset;
    _Atomic uint32_t flags; /* of open(2) and fcntl(2) */
    _Atomic uint32_t version; /* changes when `file` does */
    _Atomic uint32_t uses;    /* calls before it was adopted */
    uint32_t worth;           /* how many of them are cheaper than that */
    _Atomic bool mapped;      /* the kernel has pages of it, and is to know of all that happens */
    _Atomic int adopted_in;   /* the life of the connections that it was adopted in */
    _Atomic bool again;       /* what was adopted is not open any more */
    off_t offset;
    struct atoll_file file;
    struct description *next_free;
};

/* The state of this thread. */
struct thread {
    int depth;     /* calls of ours in progress; above 1 in a signal handler that interrupted one */
    bool vforked;  /* this is a child in its parent's memory: nothing here is its own */
    bool nested_fork;
    int vfork_depth;
    void *vfork_return, *nested_return;
    int deferred;  /* a signal that waits for the call in progress to end, and its particulars */
    siginfo_t information;
    uint64_t mask;
};
extern __thread struct thread self __attribute__((tls_model("initial-exec")));

/* Set when this process is to make system calls only, for good. */
extern _Atomic bool disabled;

/* Begins and ends a call that works on the table: in between, signal handlers wait. */
void deliver_deferred(void);
static inline int enter(void) {
    int depth = ++self.depth;
    atomic_signal_fence(memory_order_seq_cst);
    return depth;
}
static inline void leave(void) {
    atomic_signal_fence(memory_order_seq_cst);
    self.depth--;
    if (__builtin_expect(self.deferred != 0, 0) && self.depth == 0) deliver_deferred();
}

/* The backend for a call in progress. A handler that interrupts another call does not touch the
 * connection that the call is using. */
const struct atoll_backend *backend(const struct atoll_file *file, bool writes);

/* Whether a backend's answer for fd says that the kernel is to make the call. */
bool left_to_kernel(int fd, ssize_t result);

/* The lowest descriptor of the backend's own from first to last, or -1. */
int reserved(unsigned first, unsigned last);

/* Whether this process has a connection, which is of the identity that it had then. */
bool connected(void);

/* A lock that no handler of this thread can want while it is held, between `enter` and `leave`. */
void lock(_Atomic uint32_t *word);
void unlock(_Atomic uint32_t *word);
/* That of the table of mappings, which is taken over fork. */
extern _Atomic uint32_t mappings_lock;

/* Whether fd is an open file of ours, and if so what it is and its flags. */
bool identify(int fd, struct atoll_file *file, uint32_t *flags);
/* The description of fd if its offset is private, for this thread alone until `let_go`. Between
 * `enter` and `leave`. */
struct description *hold(int fd, bool *locked);
void let_go(struct description *description, bool locked);

/* ---- what happens to descriptors ---- */

/* A new description that open(2) has just returned. */
void opened(int fd);
/* fd is about to be closed, or something else may be there by now. */
void forget(int fd);
void forget_range(unsigned first, unsigned last);
/* from is about to be duplicated / has been, to `to`. */
void before_duplicate(int from);
void duplicated(int from, int to);
/* fd is about to be mapped into memory. */
void mapped(int fd);
/* fd's flags of fcntl(F_SETFL) have changed. */
void flags_changed(int fd);
/* Something that does not come here is about to use the offset of fd: it becomes the kernel's. */
void share(int fd);
/* The kernel is about to go by the size and the pages of fd that it knows, and not to ask the
 * server: it is made to ask. */
void refresh(int fd);
/* The C library will use fd by itself, and close it: leave it to the kernel. */
void surrender(int fd);
/* The kernel is told the offset, which stays private: of one, of all. */
void publish(int fd);
void publish_all(void);
/* Around everything that gives descriptors to another process. */
void before_fork(void);
void after_fork(void);
/* Instead of these, around what makes a child with a copy of this memory, and in that child. */
void before_copy(void);
void after_copy(void);
void after_copy_in_child(void);
/* The kernel alone from here on. */
void disable(void);
/* Whether a limit on the size of files has to be kept, which the kernel does. */
void limits_changed(void);
