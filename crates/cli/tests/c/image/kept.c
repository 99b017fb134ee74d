/* Uses a file that is kept until its server tells of changes.

   kept calls FILE COUNT: so many rounds of calls about it.
   kept alone FILE MILLISECONDS: learns all about it, says so, and calls nothing for that long; then
   the file has to be another one.
   kept reads FILE: learns all about it, and waits for a line; then as above. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#include "../../../../libatoll/tests/c/check.h"

static char found[4096];

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

/* Reads the file that has this name by now. */
static ssize_t look(const char *path)
{
    struct stat named, opened;
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && stat(path, &named) == 0 && fstat(fd, &opened) == 0);
    CHECK(named.st_ino == opened.st_ino && named.st_size == opened.st_size);
    ssize_t len = pread(fd, found, sizeof found, 0);
    CHECK(len == named.st_size && close(fd) == 0);
    return len;
}

int main(int count, char **arguments)
{
    CHECK(count >= 3);
    const char *what = arguments[1], *path = arguments[2];
    struct stat first;
    ssize_t len = look(path);
    CHECK(stat(path, &first) == 0);
    if (!strcmp(what, "calls")) {
        int fd = open(path, O_RDONLY);
        for (long left = atol(arguments[3]); left > 0; left--) {
            struct stat again;
            CHECK(stat(path, &again) == 0 && again.st_ino == first.st_ino);
            CHECK(fstat(fd, &again) == 0 && again.st_size == len);
            CHECK(lseek(fd, left, SEEK_SET) == left && lseek(fd, 0, SEEK_END) == len);
            CHECK(pread(fd, found, sizeof found, 0) == len);
        }
        puts("done");
        return 0;
    }
    double begin = seconds();
    uint64_t ticks = __rdtsc();
    while (seconds() - begin < 0.1)
        ;
    uint64_t hundred = __rdtsc() - ticks;
    puts("kept");
    fflush(stdout);
    if (!strcmp(what, "alone")) {
        uint64_t end = __rdtsc() + hundred / 100 * (uint64_t)atol(arguments[3]);
        while (__rdtsc() < end)
            ;
    } else {
        CHECK(getchar() == '\n');
    }
    struct stat now;
    CHECK(stat(path, &now) == 0 && now.st_ino == first.st_ino && now.st_size == len + 5);
    CHECK(look(path) == len + 5 && !memcmp(found + len, "more\n", 5));
    puts("seen");
    return 0;
}
