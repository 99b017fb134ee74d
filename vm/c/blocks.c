/* Writes blocks of a file by chance, each time other bytes, and reads each into a place in memory
 * that nothing else writes: so that these places are as the device has filled them, however long
 * ago that was.
 *
 *   blocks FILE STOP      until the file STOP is there. Then each place is looked at once more, the
 *                         file is read again, and it prints the sum of all and how many there were.
 *                         It has a lock of the file all the time. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 16 << 10, BLOCKS = 512, WORDS = BLOCK / 8 };

static uint64_t *places, *out, *again;
static uint64_t stamps[BLOCKS];

static void fail(const char *what, int block) {
    printf("%s of block %d: %s\n", what, block, strerror(errno));
    exit(1);
}

static uint64_t word(int block, uint64_t stamp, int at) {
    uint64_t x = (uint64_t)block << 48 ^ stamp << 16 ^ (uint64_t)at;
    x *= 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

static void look(const uint64_t *found, int block, const char *what) {
    errno = 0;
    for (int at = 0; at < WORDS; at++) {
        if (found[at] != word(block, stamps[block], at)) fail(what, block);
    }
}

int main(int argc, char **argv) {
    if (argc != 3) return fputs("blocks FILE STOP\n", stderr), 2;
    int fd = open(argv[1], O_RDWR | O_CREAT | O_DIRECT, 0644);
    if (fd < 0) fail("open", 0);
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 10};
    if (fcntl(fd, F_SETLK, &range) < 0) fail("lock", 0);
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, (size_t)BLOCK * (BLOCKS + 2)) != 0) return 1;
    places = memory;
    out = places + (size_t)WORDS * BLOCKS;
    again = out + WORDS;
    uint64_t chance = 88172645463325252u;
    unsigned long count = 0;
    for (; count < BLOCKS || access(argv[2], F_OK) != 0; count++) {
        chance ^= chance << 13, chance ^= chance >> 7, chance ^= chance << 17;
        /* Each at first, so that the file is whole. */
        int block = count < BLOCKS ? (int)count : (int)(chance % BLOCKS);
        uint64_t *place = places + (size_t)WORDS * block;
        if (count >= BLOCKS) look(place, block, "the place before");
        stamps[block]++;
        for (int at = 0; at < WORDS; at++) out[at] = word(block, stamps[block], at);
        if (pwrite(fd, out, BLOCK, (off_t)block * BLOCK) != BLOCK) fail("pwrite", block);
        if (pread(fd, place, BLOCK, (off_t)block * BLOCK) != BLOCK) fail("pread", block);
        look(place, block, "the place");
        if (count == BLOCKS) printf("runs\n"), fflush(stdout);
    }
    uint64_t sum = 0;
    for (int block = 0; block < BLOCKS; block++) {
        uint64_t *place = places + (size_t)WORDS * block;
        look(place, block, "the place in the end");
        if (pread(fd, again, BLOCK, (off_t)block * BLOCK) != BLOCK) fail("pread again", block);
        look(again, block, "the file");
        for (int at = 0; at < WORDS; at++) sum += place[at] * (uint64_t)(at + 1);
    }
    printf("sum %lx, %lu written\n", (unsigned long)sum, count);
    return close(fd) == 0 ? 0 : 1;
}
