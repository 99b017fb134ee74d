/* The carrier of open files' data when the kernel does not carry it: the interface between the
 * interposer, which knows descriptors, offsets and processes, and a connection to the server.
 *
 * The interposer calls a backend with signals deferred, from any thread, never from a child that
 * shares its parent's memory. Inside these calls the process's own read(2), write(2) and so on go
 * to the kernel, so that a backend may use them.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "../../preload-backend/src/abi.h"
#include "../../vfs/src/abi.h"

/* A field lies at an offset and reaches to another, which are those that Rust has. */
#define ATOLL_SAME_IN_RUST(type, field, from, to)                                                 \
    _Static_assert(offsetof(struct type, field) == (from) &&                                      \
                       (from) + sizeof(((struct type *)0)->field) == (to),                        \
                   #type "." #field)

/* The server's answer to ATOLL_IDENTIFY about a descriptor on one of its mounts. A descriptor that
 * is not Atoll's answers with an error. All fields are in the machine's byte order. */
struct atoll_identity {
    uint32_t magic;   /* ATOLL_MAGIC */
    uint32_t version; /* ATOLL_VERSION */
    uint64_t session; /* which connection to the server the handle belongs to */
    uint64_t ino;     /* the inode number on the volume */
    uint64_t handle;  /* the server's handle of the open file */
    uint64_t token[2]; /* by which another connection may use it */
};
ATOLL_SAME_IN_RUST(atoll_identity, magic, ATOLL_IDENTITY_MAGIC, ATOLL_IDENTITY_VERSION);
ATOLL_SAME_IN_RUST(atoll_identity, version, ATOLL_IDENTITY_VERSION, ATOLL_IDENTITY_SESSION);
ATOLL_SAME_IN_RUST(atoll_identity, session, ATOLL_IDENTITY_SESSION, ATOLL_IDENTITY_INO);
ATOLL_SAME_IN_RUST(atoll_identity, ino, ATOLL_IDENTITY_INO, ATOLL_IDENTITY_HANDLE);
ATOLL_SAME_IN_RUST(atoll_identity, handle, ATOLL_IDENTITY_HANDLE, ATOLL_IDENTITY_TOKEN);
ATOLL_SAME_IN_RUST(atoll_identity, token, ATOLL_IDENTITY_TOKEN, ATOLL_IDENTITY_SIZE);
_Static_assert(sizeof(struct atoll_identity) == ATOLL_IDENTITY_SIZE, "atoll_identity");
_Static_assert(ATOLL_IDENTIFY == _IOR('A', 0xf5, struct atoll_identity), "ATOLL_IDENTIFY");

/* By ATOLL_MAP, asks the server for memory that is the content of `length` bytes of the file
 * from `offset` on, to map it: shared with every other program that does, and with what it reads
 * and writes. ENOTTY where there is no server. The memory is had in exchange for the token at
 * the socket `address`. If `writable` is ATOLL_MAP_PARTS, the answer's `length` says how many of
 * the bytes are in it; those that follow are asked for by themselves. */
struct atoll_map {
    uint32_t magic, version; /* as above */
    uint64_t offset, length;
    unsigned char token[16];
    uint32_t writable; /* the file is open for writing too */
    uint32_t address_length;
    char address[108];
    uint32_t zero;
};
ATOLL_SAME_IN_RUST(atoll_map, magic, ATOLL_MAP_MAGIC, ATOLL_MAP_VERSION);
ATOLL_SAME_IN_RUST(atoll_map, version, ATOLL_MAP_VERSION, ATOLL_MAP_OFFSET);
ATOLL_SAME_IN_RUST(atoll_map, offset, ATOLL_MAP_OFFSET, ATOLL_MAP_LENGTH);
ATOLL_SAME_IN_RUST(atoll_map, length, ATOLL_MAP_LENGTH, ATOLL_MAP_TOKEN);
ATOLL_SAME_IN_RUST(atoll_map, token, ATOLL_MAP_TOKEN, ATOLL_MAP_WRITABLE);
ATOLL_SAME_IN_RUST(atoll_map, writable, ATOLL_MAP_WRITABLE, ATOLL_MAP_ADDRESS_LENGTH);
ATOLL_SAME_IN_RUST(atoll_map, address_length, ATOLL_MAP_ADDRESS_LENGTH, ATOLL_MAP_ADDRESS);
ATOLL_SAME_IN_RUST(atoll_map, address, ATOLL_MAP_ADDRESS, ATOLL_MAP_ZERO);
ATOLL_SAME_IN_RUST(atoll_map, zero, ATOLL_MAP_ZERO, ATOLL_MAP_SIZE);
_Static_assert(sizeof(struct atoll_map) == ATOLL_MAP_SIZE, "atoll_map");
_Static_assert(ATOLL_MAP == _IOWR('A', 0xf6, struct atoll_map), "ATOLL_MAP");

/* Asks at that socket about a mapped file, for a descriptor of its memory or that it be durable. */
struct atoll_ask {
    uint32_t magic;   /* ATOLL_CONTROL_MAGIC */
    uint16_t version; /* ATOLL_CONTROL_VERSION */
    uint8_t kind;     /* ATOLL_ASK_MEMORY or ATOLL_ASK_SYNC */
    uint8_t zeros[5];
    unsigned char token[16];
};
ATOLL_SAME_IN_RUST(atoll_ask, magic, ATOLL_ASK_MAGIC_AT, ATOLL_ASK_VERSION_AT);
ATOLL_SAME_IN_RUST(atoll_ask, version, ATOLL_ASK_VERSION_AT, ATOLL_ASK_KIND_AT);
ATOLL_SAME_IN_RUST(atoll_ask, kind, ATOLL_ASK_KIND_AT, ATOLL_ASK_ZEROS_AT);
ATOLL_SAME_IN_RUST(atoll_ask, zeros, ATOLL_ASK_ZEROS_AT, ATOLL_ASK_TOKEN_AT);
ATOLL_SAME_IN_RUST(atoll_ask, token, ATOLL_ASK_TOKEN_AT, ATOLL_ASK_SIZE);
_Static_assert(sizeof(struct atoll_ask) == ATOLL_ASK_SIZE, "atoll_ask");

/* The answer, as far as it is not text. */
struct atoll_answer {
    uint32_t magic;
    uint16_t version;
    uint8_t status; /* ATOLL_ANSWER_GRANTED, or another */
    uint8_t mode;
};
ATOLL_SAME_IN_RUST(atoll_answer, magic, ATOLL_ANSWER_MAGIC_AT, ATOLL_ANSWER_VERSION_AT);
ATOLL_SAME_IN_RUST(atoll_answer, version, ATOLL_ANSWER_VERSION_AT, ATOLL_ANSWER_STATUS_AT);
ATOLL_SAME_IN_RUST(atoll_answer, status, ATOLL_ANSWER_STATUS_AT, ATOLL_ANSWER_MODE_AT);
ATOLL_SAME_IN_RUST(atoll_answer, mode, ATOLL_ANSWER_MODE_AT, ATOLL_ANSWER_SIZE);
_Static_assert(sizeof(struct atoll_answer) == ATOLL_ANSWER_SIZE, "atoll_answer");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "at the socket");

/* An open file. */
struct atoll_file {
    uint64_t session, ino, handle, token[2];
    uint64_t adopted; /* the handle of this process's own connection */
    const void *connection; /* which that is; null: the kernel alone */
    dev_t device; /* st_dev of the mount */
    int fd;       /* a descriptor of it, valid during the call */
    int access;   /* how it is open: it is adopted by that and its inode number; -1: by its token */
};
ATOLL_SAME_IN_RUST(atoll_file, session, ATOLL_FILE_SESSION, ATOLL_FILE_INO);
ATOLL_SAME_IN_RUST(atoll_file, ino, ATOLL_FILE_INO, ATOLL_FILE_HANDLE);
ATOLL_SAME_IN_RUST(atoll_file, handle, ATOLL_FILE_HANDLE, ATOLL_FILE_TOKEN);
ATOLL_SAME_IN_RUST(atoll_file, token, ATOLL_FILE_TOKEN, ATOLL_FILE_ADOPTED);
ATOLL_SAME_IN_RUST(atoll_file, adopted, ATOLL_FILE_ADOPTED, ATOLL_FILE_CONNECTION);
ATOLL_SAME_IN_RUST(atoll_file, connection, ATOLL_FILE_CONNECTION, ATOLL_FILE_DEVICE);
ATOLL_SAME_IN_RUST(atoll_file, device, ATOLL_FILE_DEVICE, ATOLL_FILE_FD);
ATOLL_SAME_IN_RUST(atoll_file, fd, ATOLL_FILE_FD, ATOLL_FILE_ACCESS);
ATOLL_SAME_IN_RUST(atoll_file, access, ATOLL_FILE_ACCESS, ATOLL_FILE_SIZE);
_Static_assert(sizeof(struct atoll_file) == ATOLL_FILE_SIZE, "atoll_file");

/* A backend answers ATOLL_BY_KERNEL when it cannot serve a call that the kernel could: the
 * interposer then makes the system call. ATOLL_CLOSED is the same, since what was adopted has
 * been closed: the file may be adopted again. Any other negative answer is an error number. */

struct atoll_backend {
    /* Before everything else in this process; 0, or negative if all of its calls are to go to the
     * kernel. `servers` is the variable that `atoll run` has set, and stays. Called again in a
     * child after fork, which must leave its parent's connections alone. */
    int (*begin)(const char *servers);
    /* Around fork: no connection is half made in between, whose descriptors and memory a child
     * would have without knowing. Waits for one that is being made. */
    void (*before_fork)(void);
    void (*after_fork)(void);
    /* In a child, as soon as possible: closes the descriptors that it has inherited. */
    void (*forked)(void);
    /* The lowest descriptor of the backend's own from first to last, or -1. Nobody else may close
     * it. */
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
ATOLL_SAME_IN_RUST(atoll_backend, begin, ATOLL_BACKEND_BEGIN, ATOLL_BACKEND_BEFORE_FORK);
ATOLL_SAME_IN_RUST(atoll_backend, before_fork, ATOLL_BACKEND_BEFORE_FORK, ATOLL_BACKEND_AFTER_FORK);
ATOLL_SAME_IN_RUST(atoll_backend, after_fork, ATOLL_BACKEND_AFTER_FORK, ATOLL_BACKEND_FORKED);
ATOLL_SAME_IN_RUST(atoll_backend, forked, ATOLL_BACKEND_FORKED, ATOLL_BACKEND_RESERVED);
ATOLL_SAME_IN_RUST(atoll_backend, reserved, ATOLL_BACKEND_RESERVED, ATOLL_BACKEND_ADOPT);
ATOLL_SAME_IN_RUST(atoll_backend, adopt, ATOLL_BACKEND_ADOPT, ATOLL_BACKEND_CLOSED);
ATOLL_SAME_IN_RUST(atoll_backend, closed, ATOLL_BACKEND_CLOSED, ATOLL_BACKEND_READ);
ATOLL_SAME_IN_RUST(atoll_backend, read, ATOLL_BACKEND_READ, ATOLL_BACKEND_WRITE);
ATOLL_SAME_IN_RUST(atoll_backend, write, ATOLL_BACKEND_WRITE, ATOLL_BACKEND_APPEND);
ATOLL_SAME_IN_RUST(atoll_backend, append, ATOLL_BACKEND_APPEND, ATOLL_BACKEND_GETATTR);
ATOLL_SAME_IN_RUST(atoll_backend, getattr, ATOLL_BACKEND_GETATTR, ATOLL_BACKEND_TRUNCATE);
ATOLL_SAME_IN_RUST(atoll_backend, truncate, ATOLL_BACKEND_TRUNCATE, ATOLL_BACKEND_FSYNC);
ATOLL_SAME_IN_RUST(atoll_backend, fsync, ATOLL_BACKEND_FSYNC, ATOLL_BACKEND_FALLOCATE);
ATOLL_SAME_IN_RUST(atoll_backend, fallocate, ATOLL_BACKEND_FALLOCATE, ATOLL_BACKEND_SIZE);
_Static_assert(sizeof(struct atoll_backend) == ATOLL_BACKEND_SIZE, "atoll_backend");
_Static_assert(sizeof(struct iovec) == ATOLL_IOVEC_SIZE, "iovec");
_Static_assert(sizeof(struct statx) == ATOLL_STATX_SIZE, "statx");
_Static_assert(sizeof(off_t) == ATOLL_OFFSET_SIZE && sizeof(ssize_t) == ATOLL_OFFSET_SIZE, "off_t");

/* Rings in memory that is shared with the server: in Rust, crates/preload-backend. */
extern const struct atoll_backend atoll_by_rings;
/* System calls on the descriptor: every call the same, nothing gained. */
extern const struct atoll_backend atoll_by_system_calls;
