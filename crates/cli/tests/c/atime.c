/* The effect of reading on times of last access.
 *
 *   atime relatime DIRECTORY [shown]     they are set when they are due, and only then; and the
 *                                        table of mounts says so
 *   atime noatime DIRECTORY              they stay
 *   atime cached DIRECTORY [shown]       as relatime, where the kernel reads by itself what is
 *                                        open already
 *   atime two DIRECTORY OTHER            what is read through one mount is seen through another
 *
 * Prints a line for each that is wrong, and `end`. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 3 * 4096 };
static char file[300], listed[300], name[320], target[300];
static char bytes[SIZE];
static bool relatime;

static void must(bool good, const char *what) {
    if (good) return;
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

/* ---- ways to read, each opening anew ---- */

static int open_file(int flags) {
    int fd = open(file, O_RDONLY | flags);
    must(fd >= 0, "open");
    return fd;
}
static void by_read(int flags) {
    int fd = open_file(flags);
    must(read(fd, bytes, SIZE) == SIZE && close(fd) == 0, "read");
}
static void by_pread(int flags) {
    int fd = open_file(flags);
    must(pread(fd, bytes, 1, SIZE - 1) == 1 && close(fd) == 0, "pread");
}
static void by_readv(int flags) {
    struct iovec two[2] = {{bytes, 10}, {bytes + 10, 5000}};
    int fd = open_file(flags);
    must(readv(fd, two, 2) == 5010 && close(fd) == 0, "readv");
}
/* As often as it takes for a library to do without the kernel, and without the server. */
static void by_many(int flags) {
    int fd = open_file(flags);
    for (int i = 0; i < 300; i++) must(pread(fd, bytes, 100, i * 7) == 100, "pread");
    must(close(fd) == 0, "close");
}
static void by_stream(int flags) {
    FILE *stream = fdopen(open_file(flags), "r");
    must(stream && fread(bytes, 1, SIZE, stream) == SIZE && fclose(stream) == 0, "fread");
}
static void by_map(int flags, int kind) {
    int fd = open_file(flags);
    volatile char *map = mmap(NULL, SIZE, PROT_READ, kind, fd, 0);
    must(map != MAP_FAILED, "mmap");
    bytes[0] = map[0];
    must(munmap((void *)map, SIZE) == 0 && close(fd) == 0, "munmap");
}
static void by_private_map(int flags) { by_map(flags, MAP_PRIVATE); }
static void by_shared_map(int flags) { by_map(flags, MAP_SHARED); }
static void by_sendfile(int flags) {
    int fd = open_file(flags), to = open(target, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    must(to >= 0 && sendfile(to, fd, NULL, SIZE) > 0, "sendfile");
    must(close(fd) == 0 && close(to) == 0, "close");
}
static void by_copy(int flags) {
    int fd = open_file(flags), to = open(target, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    must(to >= 0 && copy_file_range(fd, NULL, to, NULL, SIZE, 0) > 0, "copy_file_range");
    must(close(fd) == 0 && close(to) == 0, "close");
}
/* A descriptor that is told of O_NOATIME only when it has been used. */
static void by_told(int flags) {
    int fd = open_file(0);
    if (flags) must(fcntl(fd, F_SETFL, flags) == 0, "F_SETFL");
    for (int i = 0; i < 300; i++) must(pread(fd, bytes, 100, i * 7) == 100, "pread");
    must(close(fd) == 0, "close");
}
static void by_readdir(int flags) {
    DIR *dir = fdopendir(open(listed, O_RDONLY | O_DIRECTORY | flags));
    must(dir, "fdopendir");
    while (readdir(dir)) {}
    must(closedir(dir) == 0, "closedir");
}
static void by_readlink(int flags) {
    (void)flags;
    must(readlink(name, bytes, SIZE) > 0, "readlink");
}
static void by_following(int flags) {
    (void)flags;
    struct stat attr;
    must(stat(name, &attr) == 0 && S_ISREG(attr.st_mode), "stat");
}

static struct way {
    const char *what;
    void (*how)(int flags);
    const char *path;
} ways[] = {
    {"read", by_read, file},
    {"pread", by_pread, file},
    {"readv", by_readv, file},
    {"many preads", by_many, file},
    {"a stream", by_stream, file},
    {"a private mapping", by_private_map, file},
    {"a shared mapping", by_shared_map, file},
    {"sendfile", by_sendfile, file},
    {"copy_file_range", by_copy, file},
    {"preads after F_SETFL", by_told, file},
    {"readdir", by_readdir, listed},
    {"readlink", by_readlink, name},
    {"following", by_following, name},
    {},
};

/* ---- what comes of it ---- */

static struct stat look(const char *path) {
    struct stat attr;
    must(lstat(path, &attr) == 0, "lstat");
    return attr;
}
static void set(const char *path, time_t atime) {
    struct timespec times[2] = {{atime, 5}, {0, UTIME_OMIT}};
    must(utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW) == 0, "utimensat");
}
static bool same(struct timespec one, struct timespec other) {
    return one.tv_sec == other.tv_sec && one.tv_nsec == other.tv_nsec;
}
static void check(struct way way, const char *when, struct stat before, bool sets) {
    struct stat after = look(way.path);
    bool recent = after.st_atim.tv_sec + 60 > time(NULL) && after.st_atim.tv_sec < time(NULL) + 60;
    bool is_same = same(before.st_atim, after.st_atim);
    if (sets ? !recent || is_same : !is_same)
        printf("%s, %s: the time is %s\n", way.what, when, sets ? "not set" : "set");
    if (!same(before.st_mtim, after.st_mtim) || !same(before.st_ctim, after.st_ctim))
        printf("%s, %s: other times are set\n", way.what, when);
}
static void try(struct way way) {
    set(way.path, 1000000000);
    struct stat before = look(way.path);
    bool by_descriptor = way.path != name;
    if (by_descriptor) {
        way.how(O_NOATIME);
        check(way, "with O_NOATIME", before, false);
    }
    way.how(0);
    check(way, "when it is due", before, relatime);
    before = look(way.path);
    way.how(0);
    check(way, "once more", before, false);
    must(chmod(way.path == name ? file : way.path, 0700) == 0, "chmod");
    if (way.path != name) {
        before = look(way.path);
        way.how(0);
        check(way, "after chmod", before, relatime);
    }
    set(way.path, time(NULL) + 3600);
    before = look(way.path);
    way.how(0);
    check(way, "when it lies ahead", before, false);
}

/* A file that stays open is read after each change too. */
static void kept_open(struct way way, bool writes_itself) {
    int fd = open(file, writes_itself ? O_RDWR : O_RDONLY);
    int writer = writes_itself ? fd : open(file, O_WRONLY);
    must(fd >= 0 && writer >= 0, "open");
    set(file, 1000000000);
    for (int i = 0; i < 10; i++) {
        for (int j = 0; j < 20; j++) must(pread(fd, bytes, 100, 0) == 100, "pread");
        must(pwrite(writer, "x", 1, i) == 1, "pwrite");
        /* As long as clocks of file systems stand still. */
        usleep(12000);
        struct stat before = look(file);
        must(pread(fd, bytes, 100, 5000) == 100, "pread");
        check(way, "after a write", before, relatime);
    }
    must(close(fd) == 0 && (writes_itself || close(writer) == 0), "close");
}

/* Whether the first page of the file is in the kernel's cache. */
static bool resident(void *map) {
    unsigned char pages[SIZE / 4096];
    must(mincore(map, SIZE, pages) == 0, "mincore");
    return pages[0] & 1;
}
/* A read that is not for a page cache: it is answered when all kernels have invalidated. */
static void read_here(const char *path) {
    int fd = open(path, O_RDWR);
    must(fd >= 0 && pread(fd, bytes, 1, 0) == 1 && close(fd) == 0, "pread");
}
/* Has the time due, and a kernel keep that by a lease: after an invalidation it gets no new lease
 * for some time. */
static void prepare(const char *path, int seconds) {
    set(file, 1000000000 + seconds);
    usleep(150000);
    look(path);
}
static void seen_alike(const char *other, int round) {
    struct stat here = look(file), there = look(other);
    if (here.st_atim.tv_sec < 1500000000 || !same(here.st_atim, there.st_atim))
        printf("%d: the times are %ld and %ld\n", round, (long)here.st_atim.tv_sec,
               (long)there.st_atim.tv_sec);
}
static void through_two(const char *other) {
    char there[300];
    snprintf(there, sizeof there, "%s/file", other);
    for (int i = 0; i < 3; i++) {
        prepare(file, i);
        read_here(there);
        seen_alike(there, i);
        int fd = open(there, O_RDONLY);
        volatile char *map = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, fd, 0);
        must(fd >= 0 && map != MAP_FAILED, "mmap");
        bytes[0] = map[0];
        prepare(there, i);
        read_here(file);
        seen_alike(there, i);
        if (!resident((void *)map)) printf("%d: pages have gone\n", i);
        must(munmap((void *)map, SIZE) == 0 && close(fd) == 0, "munmap");
    }
}

int main(int argc, char **argv) {
    must(argc >= 3, "arguments");
    snprintf(file, sizeof file, "%s/file", argv[2]);
    snprintf(listed, sizeof listed, "%s/listed", argv[2]);
    snprintf(name, sizeof name, "%s/name", argv[2]);
    snprintf(target, sizeof target, "%s/target", argv[2]);
    /* A file that nobody has mapped: no kernel gets a lease on pages of a mapped one. */
    must(unlink(file) == 0 || errno == ENOENT, "unlink");
    int fd = open(file, O_WRONLY | O_CREAT | O_EXCL, 0600);
    memset(bytes, 'a', SIZE);
    must(fd >= 0 && write(fd, bytes, SIZE) == SIZE && close(fd) == 0, "making the file");
    must(mkdir(listed, 0700) == 0 || errno == EEXIST, "mkdir");
    must(symlink("file", name) == 0 || errno == EEXIST, "symlink");
    relatime = strcmp(argv[1], "noatime") != 0;
    if (!strcmp(argv[1], "two")) {
        through_two(argv[3]);
    } else {
        struct statvfs mount;
        must(statvfs(argv[2], &mount) == 0, "statvfs");
        bool shown = !(mount.f_flag & ST_NOATIME);
        if (shown != (argc > 3))
            printf("the table of mounts %s relatime\n", shown ? "has" : "has not");
        for (struct way *way = ways; way->what; way++) try(*way);
        if (strcmp(argv[1], "cached")) {
            kept_open((struct way){"an open file", NULL, file}, false);
            kept_open((struct way){"an open file that it writes to", NULL, file}, true);
        }
    }
    printf("end\n");
    return 0;
}
