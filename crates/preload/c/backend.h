/* What carries the data of open files when the kernel does not: the interface between the
 * interposer, which knows descriptors, offsets and processes, and a connection to the server.
 *
 * The interposer calls a backend with signals deferred, from any thread, never from a child that
 * shares its parent's memory. Inside these calls the process's own read(2), write(2) and so on go
 * to the kernel, so that a backend may use them.
 */
#pragma once
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>

/* What the server says of a descriptor on one of its mounts, by ATOLL_IDENTIFY. Whatever is not
 * Atoll's answers with an error. All fields are in the machine's byte order. */
struct atoll_identity {
    uint32_t magic;   /* ATOLL_MAGIC */
    uint32_t version; /* ATOLL_VERSION */
    uint64_t session; /* which connection to the server the handle belongs to */
    uint64_t ino;     /* the inode number on the volume */
    uint64_t handle;  /* the server's handle of the open file */
    uint64_t token[2]; /* by which another connection may use it */
};
#define ATOLL_MAGIC 0x4c4f5441u
#define ATOLL_VERSION 2u
#define ATOLL_IDENTIFY _IOR('A', 0xf5, struct atoll_identity)

/* Asks the server for memory that is the content of `length` bytes of the file from `offset` on, to map
 * it: shared with every other program that does, and with what it reads and writes. ENOTTY
 * where there is no server. The memory is had in exchange for the token at the socket `address`. */
struct atoll_map {
    uint32_t magic, version; /* as above */
    uint64_t offset, length;
    unsigned char token[16];
    uint32_t writable; /* the file is open for writing too */
    uint32_t address_length;
    char address[108];
    uint32_t zero;
};
#define ATOLL_MAP _IOWR('A', 0xf6, struct atoll_map)

/* An open file. */
struct atoll_file {
    uint64_t session, ino, handle, token[2];
    uint64_t adopted; /* the handle of this process's own connection */
    const void *connection; /* which that is; null: the kernel alone */
    dev_t device; /* st_dev of the mount */
    int fd;       /* a descriptor of it, valid during the call */
    int access;   /* how it is open, if it is to be adopted by that and its inode number; or -1: by its token */
};

/* What a backend answers when it cannot serve a call that the kernel could: the interposer then
 * makes the system call. Any other negative answer is an error number. */
enum { ATOLL_BY_KERNEL = -4096 };
/* The same, since what was adopted has been closed: the file may be adopted again. */
enum { ATOLL_CLOSED = -4097 };

struct atoll_backend {
    /* Before everything else in this process; 0, or negative if all of its calls are to go to the
     * kernel. `servers` is the variable that `atoll run` has set, and stays. Called again in a
     * child after fork, which must leave its parent's connections alone. */
    int (*begin)(const char *servers);
    /* Around fork: no connection is half made in between, whose descriptors and memory a child would
     * have without knowing. Waits for one that is being made. */
    void (*before_fork)(void);
    void (*after_fork)(void);
    /* In a child, as soon as possible: closes the descriptors that it has inherited. */
    void (*forked)(void);
    /* The lowest descriptor of the backend's own from first to last, or -1. Nobody else may close it. */
    int (*reserved)(unsigned first, unsigned last);

    /* Makes the open file known to this process's own connection, which is made if need be; 0, or
     * negative if its calls are to go to the kernel. */
    int (*adopt)(struct atoll_file *file);
    /* It is used no more. */
    void (*closed)(const struct atoll_file *file);

    /* Bytes moved, or negative. Handle numbers are never used twice: one that has been closed since
     * gives ATOLL_CLOSED. */
    ssize_t (*read)(const struct atoll_file *, const struct iovec *, int count, off_t at);
    ssize_t (*write)(const struct atoll_file *, const struct iovec *, int count, off_t at);
    /* Writes at the end of the file, wherever that is by then; *end is the offset after it. */
    ssize_t (*append)(const struct atoll_file *, const struct iovec *, int count, off_t *end);

    /* 0 or negative. `getattr` fills the fields of STATX_BASIC_STATS and STATX_BTIME. */
    int (*getattr)(const struct atoll_file *, struct statx *);
    int (*truncate)(const struct atoll_file *, off_t size);
    int (*fsync)(const struct atoll_file *, int data_only);
    int (*fallocate)(const struct atoll_file *, int mode, off_t at, off_t length);
};

/* Rings in memory that is shared with the server: in Rust, crates/preload-backend. */
extern const struct atoll_backend atoll_by_rings;
/* System calls on the descriptor: every call the same, nothing gained. */
extern const struct atoll_backend atoll_by_system_calls;
