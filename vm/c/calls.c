/* One kind of use of a file, so that what the kernel sends for it can be counted.
 *
 *   calls map FILE        maps it shared, reads each page, stores into each, makes that durable
 *   calls lock FILE       takes a record lock and drops it, and an open file description's
 *   calls hold FILE       takes a record lock, says `held`, and keeps it
 *   calls wait FILE       waits for a record lock
 *   calls flock FILE      takes a lock of the whole file and drops it
 *   calls direct FILE     reads and writes 1 MiB with O_DIRECT
 *   calls append FILE N   appends the line `N` 100 times, one by one */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, DIRECT = 1 << 20 };

static int must(int result, const char *what) {
    if (result < 0) {
        printf("%s: %s\n", what, strerror(errno));
        exit(1);
    }
    return result;
}

static void map(int fd) {
    struct stat attr;
    must(fstat(fd, &attr), "fstat");
    unsigned char *bytes = mmap(NULL, attr.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED) must(-1, "mmap");
    unsigned long sum = 0;
    for (off_t at = 0; at < attr.st_size; at += PAGE) sum += bytes[at];
    for (off_t at = 0; at < attr.st_size; at += PAGE) bytes[at]++;
    must(msync(bytes, attr.st_size, MS_SYNC), "msync");
    printf("sum %lu\n", sum);
    munmap(bytes, attr.st_size);
}

static void lock(int fd, int how, short type) {
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = 0, .l_len = 10};
    must(fcntl(fd, how, &range), "fcntl");
}

static void direct(int fd) {
    void *buffer = NULL;
    if (posix_memalign(&buffer, PAGE, DIRECT) != 0) exit(1);
    must(pread(fd, buffer, DIRECT, 0) == DIRECT ? 0 : -1, "pread");
    must(pwrite(fd, buffer, DIRECT, 0) == DIRECT ? 0 : -1, "pwrite");
    free(buffer);
}

int main(int argc, char **argv) {
    if (argc < 3) return fputs("calls KIND FILE\n", stderr), 2;
    const char *kind = argv[1];
    int flags = strcmp(kind, "direct") == 0 ? O_DIRECT : strcmp(kind, "append") == 0 ? O_APPEND : 0;
    int fd = must(open(argv[2], O_RDWR | flags), "open");
    if (strcmp(kind, "map") == 0) {
        map(fd);
    } else if (strcmp(kind, "direct") == 0) {
        direct(fd);
    } else if (strcmp(kind, "append") == 0 && argc == 4) {
        char line[40];
        int n = snprintf(line, sizeof line, "%s\n", argv[3]);
        for (int i = 0; i < 100; i++) must(write(fd, line, n) == n ? 0 : -1, "append");
    } else if (strcmp(kind, "lock") == 0) {
        lock(fd, F_SETLK, F_WRLCK);
        lock(fd, F_SETLK, F_UNLCK);
        lock(fd, F_OFD_SETLK, F_WRLCK);
    } else if (strcmp(kind, "flock") == 0) {
        must(flock(fd, LOCK_EX), "flock");
        must(flock(fd, LOCK_UN), "flock");
    } else {
        lock(fd, strcmp(kind, "hold") == 0 ? F_SETLK : F_SETLKW, F_WRLCK);
        puts("held");
        fflush(stdout);
        if (strcmp(kind, "hold") == 0) pause();
    }
    return close(fd) == 0 ? 0 : 1;
}
