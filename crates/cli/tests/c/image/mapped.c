/* Maps files shared: `mapped DIRECTORY`; with `bus` behind it, touches what its file does not have,
   with `none`, what may not be used, and with `kept`, stores into FILE what others are to read. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../../../libatoll/tests/c/check.h"

#define PAGE 4096
#define LEN ((5l << 20) + 100)
#define RW (PROT_READ | PROT_WRITE)

static char found[8 * PAGE];

/* Calls and stores are about the same bytes. */
static void is_the_file(void)
{
    int fd = open("f", O_RDWR | O_CREAT, 0400);
    CHECK(fd >= 0 && fchmod(fd, 0600) == 0 && ftruncate(fd, LEN) == 0);
    char *at = mmap(NULL, LEN + 2 * PAGE, RW, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    for (long byte = 0; byte < LEN; byte += 1000)
        at[byte] = (char)(byte / 1000);
    for (long byte = 0; byte < LEN; byte += 1000)
        CHECK(pread(fd, found, 1, byte) == 1 && *found == (char)(byte / 1000));
    /* Short and long reads, of what was read before and may be kept. */
    int reader = open("f", O_RDONLY);
    CHECK(reader >= 0);
    for (int turn = 0; turn < 10; turn++) {
        memset(at + 70000, turn + 1, 3000);
        CHECK(pread(fd, found, 100, 70000) == 100 && found[99] == turn + 1);
        CHECK(pread(fd, found, 3000, 70000) == 3000 && found[2999] == turn + 1);
        CHECK(pread(reader, found, 100, 70000) == 100 && found[99] == turn + 1);
        CHECK(pwrite(fd, "written", 7, 2097152 - 3) == 7);
        CHECK(!memcmp(at + 2097152 - 3, "written", 7));
        memset(at + 2097152 - 3, 0, 7);
    }
    CHECK(close(reader) == 0);
    /* Behind the end of the file are zeros, to the end of its last page. */
    long end = (LEN + PAGE - 1) / PAGE * PAGE;
    for (long byte = LEN; byte < end; byte++)
        CHECK(at[byte] == 0);
    struct stat now;
    CHECK(fstat(fd, &now) == 0 && now.st_size == LEN);
    /* Bytes of it are what calls read and write. */
    int other = open("other", O_RDWR | O_CREAT, 0600);
    CHECK(pwrite(other, at + 70000, 3000, 0) == 3000 && pread(other, at + 4096, 3000, 0) == 3000);
    CHECK(at[4096] == 10 && at[7095] == 10 && pread(fd, found, 1, 7095) == 1 && *found == 10);
    FAILS(pwrite(other, at + end - 1, 2, 0), EFAULT);
    FAILS(pread(other, at + end - 1, 2, 0), EFAULT);
    CHECK(msync(at, LEN, MS_SYNC) == 0 && msync(at, LEN, MS_ASYNC) == 0);
    FAILS(msync(at, LEN + 100 * PAGE, MS_SYNC), ENOMEM);
    /* Its length is set. */
    CHECK(ftruncate(fd, end + PAGE) == 0);
    at[end + PAGE - 1] = 7;
    CHECK(pread(fd, found, 1, end + PAGE - 1) == 1 && *found == 7);
    CHECK(ftruncate(fd, 3 * PAGE) == 0);
    FAILS(pwrite(other, at + 3 * PAGE, 1, 0), EFAULT);
    CHECK(pwrite(other, at + 3 * PAGE - 1, 1, 0) == 1);
    CHECK(truncate("f", 6 * PAGE) == 0 && at[3 * PAGE] == 0);
    at[6 * PAGE - 1] = 8;
    /* A part goes, the rest stays. */
    CHECK(munmap(at + PAGE, PAGE) == 0);
    FAILS(pwrite(other, at + PAGE, 1, 0), EFAULT);
    char *fresh = mmap(at + PAGE, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(fresh == at + PAGE && fresh[0] == 0 && at[6 * PAGE - 1] == 8);
    fresh[0] = 1;
    CHECK(pread(fd, found, 1, PAGE) == 1 && *found == 10);
    CHECK(mprotect(at, PAGE, PROT_READ) == 0 && mprotect(at, PAGE, PROT_NONE) == 0);
    FAILS(pwrite(other, at, 1, 0), EFAULT);
    CHECK(mprotect(at, PAGE, RW) == 0 && madvise(at, PAGE, MADV_DONTNEED) == 0);
    at[2000] = 9;
    /* Without a descriptor, and without a name. */
    char *twice = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 2 * PAGE);
    char *copy = mmap(NULL, PAGE, RW, MAP_PRIVATE, fd, 2 * PAGE);
    CHECK(twice != MAP_FAILED && copy != MAP_FAILED);
    CHECK(close(fd) == 0 && unlink("f") == 0);
    copy[5] = 1, at[2 * PAGE + 5] = 2;
    CHECK(twice[5] == 2 && copy[5] == 1 && at[2000] == 9);
    CHECK(munmap(copy, PAGE) == 0 && munmap(twice, PAGE) == 0);
    CHECK(munmap(at, LEN + 2 * PAGE) == 0 && close(other) == 0 && unlink("other") == 0);
}

/* What a file may not be used for it is not by a mapping. */
static void rights(void)
{
    int fd = open("g", O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && write(fd, "content", 7) == 7 && close(fd) == 0);
    fd = open("g", O_RDONLY);
    CHECK(mmap(NULL, PAGE, RW, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EACCES);
    char *at = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED && !strcmp(at, "content"));
    CHECK(mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, fd, -PAGE) == MAP_FAILED &&
          errno == EOVERFLOW);
    FAILS(mprotect(at, PAGE, RW), EACCES);
    CHECK(munmap(at, PAGE) == 0 && close(fd) == 0);
    fd = open(".", O_RDONLY | O_DIRECTORY);
    CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == ENODEV);
    CHECK(close(fd) == 0 && unlink("g") == 0);
}

/* More than the window has room for at a time, and again and again. */
static void many(long ranges)
{
    int fd = open("h", O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && ftruncate(fd, (ranges + 1) << 21) == 0);
    for (int turn = 0; turn < 3; turn++) {
        CHECK(mmap(NULL, (size_t)(ranges + 1) << 21, RW, MAP_SHARED, fd, 0) == MAP_FAILED &&
              errno == ENOMEM);
        for (long at = 0; at <= ranges; at++) {
            char *map = mmap(NULL, PAGE, RW, MAP_SHARED, fd, at << 21);
            CHECK(map != MAP_FAILED && map[0] == (turn ? (char)(at + turn) : 0));
            map[0] = (char)(at + turn + 1);
            CHECK(munmap(map, PAGE) == 0);
        }
    }
    CHECK(close(fd) == 0 && unlink("h") == 0);
}

int main(int count, char **arguments)
{
    CHECK(count >= 2 && chdir(arguments[1]) == 0);
    if (count == 2) {
        is_the_file();
        rights();
        many(8);
        puts("done");
        return 0;
    }
    int fd = open("kept", O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && ftruncate(fd, 3 * PAGE + 1) == 0);
    char *at = mmap(NULL, 8 * PAGE, RW, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    strcpy(at + 2 * PAGE, "stored");
    puts("began");
    fflush(stdout);
    if (!strcmp(arguments[2], "bus"))
        at[4 * PAGE] = 1;
    if (!strcmp(arguments[2], "none")) {
        CHECK(mprotect(at, PAGE, PROT_NONE) == 0);
        at[0] = 1;
    }
    CHECK(!strcmp(arguments[2], "kept"));
    return 0;
}
