/* Reads and writes a file of several ranges of a window, beside a copy in memory: `window FILE`. It
   says a sum of the bytes in the end. `window FILE grows`: reads across the end of a file until
   another has made it longer. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../../../libatoll/tests/c/check.h"

#define LEN (12 << 20)
#define PIECE (64 << 10)

static unsigned char wanted[LEN], found[PIECE];
static uint64_t state = 1;

static uint64_t chance(void)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return state >> 33;
}

/* The end is that of a range which is shown. */
static void grows(const char *path)
{
    const off_t end = 4 << 20;
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && lseek(fd, 0, SEEK_END) == end);
    for (int pass = 0; pass < 3; pass++)
        for (off_t at = 0; at < end; at += PIECE)
            CHECK(pread(fd, found, PIECE, at) == PIECE);
    CHECK(pread(fd, found, PIECE, end - PIECE / 2) == PIECE / 2);
    puts("shown");
    fflush(stdout);
    time_t begin = time(NULL);
    while (pread(fd, found, PIECE, end - PIECE / 2) != PIECE)
        CHECK(time(NULL) < begin + 60);
    puts("seen");
}

int main(int count, char **arguments)
{
    if (count == 3) {
        grows(arguments[1]);
        return 0;
    }
    CHECK(count == 2);
    int fd = open(arguments[1], O_RDWR | O_CREAT, 0644);
    CHECK(fd >= 0);
    for (size_t at = 0; at < LEN; at++)
        wanted[at] = (unsigned char)chance();
    for (size_t at = 0; at < LEN; at += 1 << 20)
        CHECK(pwrite(fd, wanted + at, 1 << 20, (off_t)at) == 1 << 20);
    for (int pass = 0; pass < 3; pass++)
        for (size_t at = 0; at < LEN; at += PIECE) {
            CHECK(pread(fd, found, PIECE, (off_t)at) == PIECE);
            CHECK(!memcmp(found, wanted + at, PIECE));
        }
    for (int turn = 0; turn < 4000; turn++) {
        size_t len = 512 + chance() % (PIECE - 512), at = chance() % (LEN - len);
        if (turn % 2) {
            memset(wanted + at, (int)chance(), len);
            CHECK(pwrite(fd, wanted + at, len, (off_t)at) == (ssize_t)len);
        } else {
            CHECK(pread(fd, found, len, (off_t)at) == (ssize_t)len);
            CHECK(!memcmp(found, wanted + at, len));
        }
    }
    CHECK(close(fd) == 0);
    uint32_t sum = 5381;
    for (size_t at = 0; at < LEN; at++)
        sum = sum * 33 + wanted[at];
    printf("%u\n", sum);
    return 0;
}
