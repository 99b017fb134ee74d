// A file of 16 MiB, mapped shared: touched, then read and written by copies of KIB KiB in no order.
// Prints nanoseconds a page for first touches, a copy for the others, and microseconds for msync.
// Usage: mapped FILE KIB; FILE is made anew.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, LENGTH = 16 << 20, PASSES = 4 };

static unsigned char expected[LENGTH], found[LENGTH];

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static void check(int is_right, const char *what) {
    if (!is_right) {
        perror(what);
        exit(1);
    }
}

// Linear congruential, by Knuth.
static uint64_t next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

int main(int argc, char **argv) {
    size_t size = argc == 3 ? strtoul(argv[2], NULL, 10) << 10 : 0;
    if (size == 0 || LENGTH % size != 0) {
        fprintf(stderr, "usage: %s FILE KIB\n", argv[0]);
        return 2;
    }
    size_t count = LENGTH / size;
    uint64_t state = 1;
    for (size_t at = 0; at < LENGTH; at++) expected[at] = next(&state);
    size_t *order = malloc(count * sizeof *order);
    check(order != NULL, "malloc");
    for (size_t at = 0; at < count; at++) order[at] = at;
    for (size_t at = count - 1; at > 0; at--) {
        size_t other = next(&state) % (at + 1), kept = order[at];
        order[at] = order[other];
        order[other] = kept;
    }

    // The pages of both are there before anything is measured.
    memset(found, 1, LENGTH);
    // Of a run before; and a volume is mounted when it is first named.
    unlink(argv[1]);
    int file = open(argv[1], O_RDWR | O_CREAT | O_EXCL, 0644);
    check(file >= 0, argv[1]);
    for (size_t at = 0; at < LENGTH; at += 1 << 20)
        check(pwrite(file, expected + at, 1 << 20, at) == 1 << 20, "pwrite");
    check(fsync(file) == 0, "fsync");
    unsigned char *map = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    check(map != MAP_FAILED, "mmap");

    volatile unsigned char *pages = map;
    double begin = now();
    for (size_t at = 0; at < LENGTH; at += PAGE) check(pages[at] == expected[at], "a page");
    double touched = now();
    for (size_t at = 0; at < LENGTH; at += PAGE) pages[at] = expected[at] = ~expected[at];
    double stored = now();
    printf("touch %.1f\n", (touched - begin) / (LENGTH / PAGE));
    printf("first-store %.1f\n", (stored - touched) / (LENGTH / PAGE));

    double loads = 0, stores = 0;
    for (int pass = 0; pass < PASSES; pass++) {
        begin = now();
        for (size_t at = 0; at < count; at++)
            memcpy(found + order[at] * size, map + order[at] * size, size);
        loads += now() - begin;
        check(memcmp(found, expected, LENGTH) == 0, "what was loaded");
        for (size_t at = 0; at < LENGTH; at += 64) expected[at] += 1;
        begin = now();
        for (size_t at = 0; at < count; at++)
            memcpy(map + order[at] * size, expected + order[at] * size, size);
        stores += now() - begin;
    }
    printf("load %.1f\nstore %.1f\n", loads / count / PASSES, stores / count / PASSES);

    begin = now();
    check(msync(map, LENGTH, MS_SYNC) == 0, "msync");
    printf("msync %.1f\n", (now() - begin) / 1000);
    check(munmap(map, LENGTH) == 0, "munmap");
    for (size_t at = 0; at < LENGTH; at += 1 << 20)
        check(pread(file, found + at, 1 << 20, at) == 1 << 20, "pread");
    check(memcmp(found, expected, LENGTH) == 0, "what was stored");
    return close(file);
}
