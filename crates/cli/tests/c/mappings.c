/* Shared mappings on a served volume, by several processes of several mounts in turn: `mappings
 * STEP FILE`. Each step waits for the bytes that the one before stored. Exits with the number of
 * the line that was wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                      \
    do {                                                                                      \
        if (!(condition)) {                                                                   \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, strerror(errno));      \
            exit(1);                                                                          \
        }                                                                                     \
    } while (0)

enum { SIZE = 16384 };

/* Waits for a store. */
static void await(volatile char *at, char value) {
    for (int i = 0; *at != value; i++) {
        CHECK(i < 20000);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static volatile char *map(int fd, size_t length, off_t at) {
    volatile char *mapped = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);
    CHECK(mapped != MAP_FAILED);
    return mapped;
}

static void first(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT, 0644);
    CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0);
    volatile char *m = map(fd, SIZE, 0);
    m[0] = 'a';
    await(m + 1, 'b'); /* a store of another mount */
    await(m + 2, 'c'); /* its write(2) */
    m[3] = 'd';
    await(m + 4, 'e');
    char bytes[5];
    CHECK(pread(fd, bytes, 5, 0) == 5 && memcmp(bytes, "abcde", 5) == 0);
    CHECK(lseek(fd, 1, SEEK_SET) == 1 && read(fd, bytes, 4) == 4 && memcmp(bytes, "bcde", 4) == 0);
    CHECK(pwrite(fd, "fgh", 3, 5) == 3 && m[7] == 'h');

    /* A child has it too, and what it stores is seen. */
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        m[8] = 'i';
        CHECK(msync((void *)m, SIZE, MS_SYNC) == 0);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0 && m[8] == 'i');

    /* A private mapping has the stores, and keeps its own. */
    char *own = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(own != MAP_FAILED && memcmp(own, "abcdefghi", 9) == 0);
    own[0] = 'z';
    CHECK(m[0] == 'a');

    /* Cut off while it is mapped, and grown again: zeros, whatever was stored. */
    m[9000] = 'x';
    CHECK(ftruncate(fd, 8192) == 0 && m[8] == 'i');
    CHECK(ftruncate(fd, SIZE) == 0 && m[9000] == 0);
    struct stat attributes;
    CHECK(fstat(fd, &attributes) == 0 && attributes.st_size == SIZE);

    /* Grown, and its mapping with it; then in part and elsewhere. */
    CHECK(ftruncate(fd, 1 << 20) == 0 && pwrite(fd, "end", 3, (1 << 20) - 3) == 3);
    volatile char *large = mremap((void *)m, SIZE, 1 << 20, MREMAP_MAYMOVE);
    CHECK(large != MAP_FAILED && large[(1 << 20) - 1] == 'd' && large[8] == 'i');
    CHECK(munmap((void *)(large + SIZE), SIZE) == 0);
    volatile char *second = map(fd, 8192, 1 << 19);
    second[10] = 'q';
    CHECK(large[(1 << 19) + 10] == 'q');
    close(fd);
    /* Without the descriptor. */
    CHECK(msync((void *)second, 8192, MS_SYNC) == 0);
    CHECK(msync((void *)(large + SIZE), SIZE, MS_SYNC) < 0 && errno == ENOMEM);
    CHECK(munmap((void *)second, 8192) == 0);
    large[9] = 'j';
    large[10] = 'k';
    await(large + 11, 'l');
}

static void second(const char *path) {
    int fd;
    for (int i = 0; (fd = open(path, O_RDWR)) < 0; i++) {
        CHECK(i < 2000);
        usleep(10000);
    }
    struct stat attributes;
    do CHECK(fstat(fd, &attributes) == 0);
    while (attributes.st_size < SIZE);
    volatile char *m = map(fd, SIZE, 0);
    await(m, 'a');
    m[1] = 'b';
    CHECK(pwrite(fd, "c", 1, 2) == 1);
    await(m + 3, 'd');
    m[4] = 'e';
    await(m + 10, 'k');
    char bytes[11];
    CHECK(pread(fd, bytes, 11, 0) == 11 && memcmp(bytes, "abcdefghijk", 11) == 0);
    m[11] = 'l';
    /* Only looked at, nothing can be stored. */
    int looking = open(path, O_RDONLY);
    CHECK(mmap(NULL, SIZE, PROT_WRITE, MAP_SHARED, looking, 0) == MAP_FAILED && errno == EACCES);
    char *seen = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, looking, 0);
    CHECK(seen != MAP_FAILED && memcmp(seen, "abcdefghijkl", 12) == 0);
    CHECK(mprotect(seen, SIZE, PROT_READ | PROT_WRITE) < 0 && errno == EACCES);
    int blind = open(path, O_WRONLY);
    CHECK(mmap(NULL, SIZE, PROT_READ, MAP_SHARED, blind, 0) == MAP_FAILED && errno == EACCES);
}

/* Stores, some of which are made durable, and waits to be killed. */
static void killed(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT, 0644);
    CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0);
    volatile char *m = map(fd, SIZE, 0);
    memset((void *)m, 'S', 5000);
    CHECK(msync((void *)m, SIZE, MS_SYNC) == 0);
    memset((void *)(m + 8192), 'T', 100);
    puts("stored");
    fflush(stdout);
    pause();
}

/* Nothing but looking, through a read-only attachment. */
static void looks(const char *path) {
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    CHECK(mmap(NULL, SIZE, PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EACCES);
    char *seen = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(seen != MAP_FAILED && seen[8192] == 'T');
    CHECK(mprotect(seen, SIZE, PROT_READ | PROT_WRITE) < 0 && errno == EACCES);
}

/* msync(2) where the descriptor's number is another file's by now. */
static void reused(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT, 0644);
    CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0);
    volatile char *m = map(fd, SIZE, 0);
    close(fd);
    char other[4096];
    snprintf(other, sizeof other, "%s.other", path);
    CHECK(open(other, O_RDWR | O_CREAT, 0644) == fd && ftruncate(fd, SIZE) == 0);
    for (int i = 0; i < 10; i++) {
        struct stat before, after;
        CHECK(stat(path, &before) == 0);
        m[i] = 'm';
        CHECK(msync((void *)m, SIZE, MS_SYNC) == 0 && stat(path, &after) == 0);
        /* Which is when the time changes; it also does once in a while. */
        CHECK(memcmp(&before.st_mtim, &after.st_mtim, sizeof before.st_mtim) != 0);
    }
}

int main(int count, char **words) {
    CHECK(count == 3);
    if (!strcmp(words[1], "first")) first(words[2]);
    if (!strcmp(words[1], "second")) second(words[2]);
    if (!strcmp(words[1], "killed")) killed(words[2]);
    if (!strcmp(words[1], "reused")) reused(words[2]);
    if (!strcmp(words[1], "looks")) looks(words[2]);
    puts("end");
    return 0;
}
