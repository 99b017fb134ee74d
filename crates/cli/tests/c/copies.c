/* Copies files, whose size and content have just changed, by every call that moves data between
 * descriptors and by those that only say how much there is. Prints a line for each that is
 * wrong, and `end`.
 *
 *   copies DIRECTORY          everything
 *   copies from PATH SIZE     as a program that has just been started: one copy, without asking
 *                             for the size */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 1 << 20 };
static unsigned char content[MOST], copied[MOST + 1];
static char source[400], target[400];
static int wrong;

static void fail(const char *what, const char *how, long size, long got) {
    printf("%s after %s: %ld bytes, and of %ld\n", what, how, got, size);
    wrong++;
}

static void must(bool good, const char *what) {
    if (good) return;
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

/* ---- changing ---- */

static void by_pwrite(int fd, long size) {
    must(ftruncate(fd, 0) == 0, "ftruncate");
    must(pwrite(fd, content, size, 0) == size, "pwrite");
}
static void by_write(int fd, long size) {
    must(ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0, "ftruncate");
    for (long at = 0, n; at < size; at += n) {
        n = size - at < 9000 ? size - at : 9000;
        must(write(fd, content + at, n) == n, "write");
    }
}
static void by_truncate(int fd, long size) {
    must(ftruncate(fd, size + 5000) == 0 && pwrite(fd, content, size, 0) == size, "pwrite");
    must(ftruncate(fd, size) == 0, "ftruncate");
}
static void by_fallocate(int fd, long size) {
    must(ftruncate(fd, 0) == 0 && fallocate(fd, 0, 0, size) == 0, "fallocate");
    must(pwrite(fd, content, size, 0) == size, "pwrite");
}
static void by_overwriting(int fd, long size) {
    must(pwrite(fd, content, size, 0) == size && ftruncate(fd, size) == 0, "pwrite");
}
static void by_another(int fd, long size) {
    (void)fd;
    int other = open(source, O_WRONLY | O_TRUNC);
    must(other >= 0, "open");
    by_write(other, size);
    /* Used often enough to be taken over. */
    for (int i = 0; i < 12; i++) must(pwrite(other, content, 1, 0) == 1, "pwrite");
    close(other);
}
static const struct {
    const char *name;
    void (*change)(int, long);
} changes[] = {
    {"pwrite", by_pwrite},       {"write", by_write},         {"ftruncate", by_truncate},
    {"fallocate", by_fallocate}, {"overwriting", by_overwriting}, {"another's write", by_another},
};

/* ---- copying: as many bytes as were said to be, or negative ---- */

static long all_of(int fd) {
    long at = 0;
    for (ssize_t n; (n = pread(fd, copied + at, sizeof copied - at, at)) > 0;) at += n;
    return at;
}
static int new_target(void) {
    int to = open(target, O_RDWR | O_CREAT | O_TRUNC, 0600);
    must(to >= 0, target);
    return to;
}
#define COPY(name, call)                                                                      \
    static long name(int fd) {                                                                \
        int to = new_target();                                                                \
        off64_t at = 0, there = 0;                                                            \
        long sum = 0;                                                                         \
        must(lseek(fd, 0, SEEK_SET) == 0, "lseek");                                           \
        for (ssize_t n; (n = call) != 0; sum += n)                                            \
            if (n < 0) return -errno;                                                         \
        (void)at, (void)there;                                                                \
        long found = all_of(to);                                                              \
        close(to);                                                                            \
        return found == sum ? sum : -found;                                                   \
    }
static ssize_t through_pipe(int fd, off64_t *at, int to) {
    static int pipe_ends[2];
    if (!pipe_ends[1]) must(pipe(pipe_ends) == 0, "pipe");
    ssize_t n = splice(fd, at, pipe_ends[1], NULL, 60000, 0);
    for (ssize_t left = n, done; left > 0; left -= done)
        if ((done = splice(pipe_ends[0], NULL, to, NULL, left, 0)) <= 0) return -1;
    return n;
}
COPY(range, copy_file_range(fd, NULL, to, NULL, MOST, 0))
COPY(range_at, copy_file_range(fd, &at, to, &there, 70000, 0))
COPY(send_all, sendfile(to, fd, NULL, MOST))
COPY(send_at, sendfile(to, fd, &at, 70000))
COPY(spliced, through_pipe(fd, NULL, to))
COPY(spliced_at, through_pipe(fd, &at, to))
COPY(read_written, ({ ssize_t n = read(fd, copied, 65536); n > 0 ? write(to, copied, n) : n; }))

/* From standard input, which no library takes over. */
static long from_input(int fd) {
    must(dup2(fd, 0) == 0, "dup2");
    return range_at(0);
}
/* A private mapping. */
static long from_memory(int fd) {
    struct stat attr;
    must(fstat(fd, &attr) == 0, "fstat");
    void *map = mmap(NULL, attr.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    must(map != MAP_FAILED, "mmap");
    memcpy(copied, map, attr.st_size);
    munmap(map, attr.st_size);
    return attr.st_size;
}
static const struct {
    const char *name;
    long (*copy)(int);
} copies[] = {
    {"copy_file_range", range},  {"copy_file_range at offsets", range_at},
    {"sendfile", send_all},      {"sendfile at an offset", send_at},
    {"splice", spliced},         {"splice at an offset", spliced_at},
    {"read and write", read_written}, {"copy_file_range of stdin", from_input},
    {"a private mapping", from_memory},
};

/* ---- saying how much ---- */

static long end(int fd) { return lseek(fd, 0, SEEK_END); }
static long hole(int fd) { return lseek(fd, 0, SEEK_HOLE); }
static long left(int fd) {
    int n = -1;
    must(lseek(fd, 0, SEEK_SET) == 0 && ioctl(fd, FIONREAD, &n) == 0, "FIONREAD");
    return n;
}
static const struct {
    const char *name;
    long (*say)(int);
} sayings[] = {{"SEEK_END", end}, {"SEEK_HOLE", hole}, {"FIONREAD", left}};

/* ---- other programs, without the library ---- */

static int without_library(const char *program, const char *path, long size) {
    char text[20];
    snprintf(text, sizeof text, "%ld", size);
    pid_t child = fork();
    if (child == 0) {
        execle(program, "copies", "from", path, text, NULL, (char *[]){NULL});
        _exit(126);
    }
    int status;
    must(waitpid(child, &status, 0) == child, "waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int copy_from(const char *path, long size) {
    int fd = open(path, O_RDONLY), pipe_ends[2];
    long sum = 0;
    if (fd < 0 || pipe(pipe_ends) < 0) return 2;
    for (ssize_t n; (n = splice(fd, NULL, pipe_ends[1], NULL, 60000, 0)) > 0; sum += n)
        if (read(pipe_ends[0], copied, n) != n) return 3;
    return sum != size;
}

int main(int argc, char **argv) {
    static const long sizes[] = {1000, 300000, 5000, 4096, 200000, 50, 800000, 4097, 100000, 7};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    if (argc == 4) return copy_from(argv[2], atol(argv[3]));
    snprintf(source, sizeof source, "%s/source", argv[1]);
    snprintf(target, sizeof target, "%s/target", argv[1]);
    int fd = open(source, O_RDWR | O_CREAT | O_TRUNC, 0600);
    must(fd >= 0, source);
    unsigned turn = 0;
    for (unsigned c = 0; c < sizeof changes / sizeof *changes; c++)
        for (unsigned w = 0; w < sizeof copies / sizeof *copies; w++)
            for (unsigned s = 0; s < SIZES; s += 1 + turn / 2 % 3) {
                /* And once more, of the same size. */
                for (int again = 0; again < 2; again++) {
                    turn++;
                    for (long i = 0; i < sizes[s]; i++) content[i] = i * 7 + i / 4096 + turn;
                    if (again) must(pwrite(fd, content, sizes[s], 0) == sizes[s], "pwrite");
                    else changes[c].change(fd, sizes[s]);
                    long got = copies[w].copy(fd);
                    if (got != sizes[s] || memcmp(copied, content, got) != 0)
                        fail(copies[w].name, again ? "pwrite" : changes[c].name, sizes[s], got);
                }
            }
    for (unsigned c = 0; c < sizeof changes / sizeof *changes; c++)
        for (unsigned w = 0; w < sizeof sayings / sizeof *sayings; w++)
            for (unsigned s = 0; s < SIZES; s++) {
                changes[c].change(fd, sizes[s]);
                long got = sayings[w].say(fd);
                if (got != sizes[s]) fail(sayings[w].name, changes[c].name, sizes[s], got);
            }
    close(fd);
    /* Written by this program, then opened by others. */
    for (unsigned s = 0; s < SIZES; s++) {
        must((fd = open(source, O_RDWR)) >= 0, source);
        by_write(fd, sizes[s]);
        int status = without_library("/proc/self/exe", source, sizes[s]);
        if (status != 0) fail("another program", "write", sizes[s], -status);
        close(fd);
    }
    /* And a program. */
    int self = open("/proc/self/exe", O_RDONLY);
    int program = open(target, O_RDWR | O_CREAT | O_TRUNC, 0700);
    must(self >= 0 && program >= 0 && fchmod(program, 0700) == 0, "the program");
    for (ssize_t n; (n = read(self, copied, 3000)) > 0;)
        must(write(program, copied, n) == n, "write");
    close(program);
    int status = without_library(target, source, sizes[SIZES - 1]);
    if (status != 0) fail("a program", "write", 0, -status);
    puts(wrong ? "wrong" : "end");
    return 0;
}
