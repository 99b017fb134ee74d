/* Files by io_uring: many writes in flight, a linked write and sync, buffers that are registered,
 * a file opened, read and closed by the ring, reads and writes at the file's own position and at
 * its end. Prints `ring`, or `no ring` where the kernel has none for this process. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 4096, BLOCKS = 64 };
static struct io_uring ring;
static char data[BLOCKS][BLOCK], again[BLOCKS][BLOCK];

static void must(int holds, const char *what) {
    if (!holds) {
        printf("%s\n", what);
        exit(1);
    }
}

/* Waits for `count` results, each of which is to be `expected`; returns the last. */
static int results(int count, int expected) {
    int result = 0;
    must(io_uring_submit(&ring) >= 0, "submit");
    for (int n = 0; n < count; n++) {
        struct io_uring_cqe *done;
        must(io_uring_wait_cqe(&ring, &done) == 0, "wait");
        result = done->res;
        if (expected >= 0 && result != expected) {
            printf("%d, not %d: %s\n", result, expected, strerror(result < 0 ? -result : 0));
            exit(1);
        }
        io_uring_cqe_seen(&ring, done);
    }
    return result;
}

int main(void) {
    if (io_uring_queue_init(BLOCKS * 2, &ring, 0)) {
        puts("no ring");
        return 0;
    }
    int fd = open("ring", O_RDWR | O_CREAT | O_TRUNC, 0600);
    must(fd >= 0, "open");
    for (int n = 0; n < BLOCKS; n++) {
        memset(data[n], 'A' + n % 50, BLOCK);
        /* The last first, so that the file grows by holes. */
        int at = BLOCKS - 1 - n;
        io_uring_prep_write(io_uring_get_sqe(&ring), fd, data[n], BLOCK, (off_t)at * BLOCK);
    }
    results(BLOCKS, BLOCK);
    struct io_uring_sqe *entry = io_uring_get_sqe(&ring);
    io_uring_prep_write(entry, fd, "linked", 6, (off_t)BLOCKS * BLOCK);
    entry->flags |= IOSQE_IO_LINK;
    io_uring_prep_fsync(io_uring_get_sqe(&ring), fd, 0);
    io_uring_submit(&ring);
    results(1, 6);
    results(1, 0);
    struct iovec registered = {again, sizeof again};
    must(io_uring_register_buffers(&ring, &registered, 1) == 0, "register");
    for (int n = 0; n < BLOCKS; n++)
        io_uring_prep_read_fixed(io_uring_get_sqe(&ring), fd, again[n], BLOCK, (off_t)n * BLOCK, 0);
    results(BLOCKS, BLOCK);
    for (int n = 0; n < BLOCKS; n++)
        must(memcmp(again[n], data[BLOCKS - 1 - n], BLOCK) == 0, "what was written");
    io_uring_prep_openat(io_uring_get_sqe(&ring), AT_FDCWD, "ring", O_RDONLY, 0);
    int other = results(1, -1);
    must(other >= 0, "open by the ring");
    io_uring_prep_read(io_uring_get_sqe(&ring), other, again, 6, (off_t)BLOCKS * BLOCK);
    results(1, 6);
    must(memcmp(again, "linked", 6) == 0, "what was linked");
    io_uring_prep_close(io_uring_get_sqe(&ring), other);
    results(1, 0);
    must(lseek(other, 0, SEEK_CUR) < 0, "closed by the ring");
    must(lseek(fd, 1000, SEEK_SET) == 1000, "lseek");
    io_uring_prep_read(io_uring_get_sqe(&ring), fd, again, 100, -1);
    results(1, 100);
    io_uring_prep_write(io_uring_get_sqe(&ring), fd, "position", 8, -1);
    results(1, 8);
    must(lseek(fd, 0, SEEK_CUR) == 1108, "the position");
    must(pread(fd, again, 8, 1100) == 8 && memcmp(again, "position", 8) == 0, "written there");
    /* Less than asked for, and then nothing. */
    io_uring_prep_read(io_uring_get_sqe(&ring), fd, again, BLOCK, (off_t)BLOCKS * BLOCK);
    results(1, 6);
    io_uring_prep_read(io_uring_get_sqe(&ring), fd, again, BLOCK, (off_t)BLOCKS * BLOCK + 6);
    results(1, 0);
    must(close(fd) == 0, "close");
    puts("ring");
    return 0;
}
