/* Does operations to one file by chance, and compares it with a model in memory at each reading.
 *
 *   fsx DIRECTORY OPERATIONS SEED [unmapped]
 *
 * Prints `end` and how often each operation was done, or what differed and the operations
 * before. An operation that the file system does not have is left out; `unmapped` says that it has
 * no shared mappings. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MOST = 256 << 10, PAGE = 4096, LOG = 40 };
static unsigned char model[MOST], buffer[MOST + PAGE];
static long size;
static char path[400], beside[400];
static int fd, appending, other;
static uint64_t state;
static long number;
static bool unmapped;

static char operations[LOG][120];

static uint64_t random64(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}
static long below(long n) { return n > 0 ? (long)(random64() % (uint64_t)n) : 0; }

static void note(const char *format, ...) {
    va_list list;
    va_start(list, format);
    char *line = operations[number % LOG];
    int n = snprintf(line, sizeof *operations, "%ld (size %ld): ", number, size);
    vsnprintf(line + n, sizeof *operations - n, format, list);
    va_end(list);
}

static void die(const char *what, long expected, long found) {
    printf("operation %ld: %s: expected %ld, found %ld (%s)\n", number, what, expected, found,
           strerror(errno));
    for (long i = number < LOG ? 0 : number - LOG + 1; i <= number; i++) puts(operations[i % LOG]);
    exit(1);
}
static void is(const char *what, long expected, long found) {
    if (expected != found) die(what, expected, found);
}
static void same(const char *what, const unsigned char *found, long at, long n) {
    for (long i = 0; i < n; i++)
        if (found[i] != model[at + i]) {
            printf("at %ld, byte %ld of the file\n", i, at + i);
            die(what, model[at + i], found[i]);
        }
}

/* ---- ranges ---- */

static void within(long *at, long *n) {
    *at = below(size);
    *n = 1 + below(size - *at < 64 << 10 ? size - *at : 64 << 10);
    if (below(4) == 0) *at &= -PAGE;
    if (*n > size - *at) *n = size - *at;
}
static void anywhere(long *at, long *n) {
    *at = below(below(4) == 0 ? MOST : size + PAGE);
    if (*at >= MOST) *at = MOST - 1;
    if (below(4) == 0) *at &= -PAGE;
    *n = 1 + below(below(3) == 0 ? 300 : 48 << 10);
    if (*n > MOST - *at) *n = MOST - *at;
}
static void fill(unsigned char *to, long n) {
    uint64_t word = random64() | 1;
    for (long i = 0; i < n; i++) to[i] = (word >> (i % 8 * 8)) + i / 8;
}
/* Writes `n` bytes at `at` to the model of the file. */
static void put(long at, const unsigned char *from, long n) {
    if (at > size) memset(model + size, 0, at - size);
    memmove(model + at, from, n);
    if (at + n > size) size = at + n;
}
static void resize(long to) {
    if (to > size) memset(model + size, 0, to - size);
    size = to;
}

/* ---- operations; false if there is nothing to be done ---- */

static bool do_read(void) {
    long at, n;
    if (size == 0) return false;
    within(&at, &n);
    long more = below(5) == 0 ? PAGE : 0, expected = n + more > size - at ? size - at : n + more;
    note("read %ld at %ld", n + more, at);
    is("read", expected, pread(fd, buffer, n + more, at));
    same("read", buffer, at, expected);
    return true;
}
static bool do_read_offset(void) {
    long at, n;
    if (size == 0) return false;
    within(&at, &n);
    note("lseek and read %ld at %ld", n, at);
    is("lseek", at, lseek(fd, at, SEEK_SET));
    struct iovec parts[2] = {{buffer, n / 3}, {buffer + n / 3, n - n / 3}};
    is("readv", n, readv(fd, parts, 2));
    is("offset", at + n, lseek(fd, 0, SEEK_CUR));
    same("readv", buffer, at, n);
    return true;
}
static bool do_write(void) {
    long at, n;
    anywhere(&at, &n);
    fill(buffer, n);
    note("write %ld at %ld", n, at);
    is("write", n, pwrite(fd, buffer, n, at));
    put(at, buffer, n);
    return true;
}
static bool do_write_offset(void) {
    long at, n;
    anywhere(&at, &n);
    fill(buffer, n);
    note("lseek and write %ld at %ld", n, at);
    is("lseek", at, lseek(fd, at, SEEK_SET));
    struct iovec parts[2] = {{buffer, n / 3}, {buffer + n / 3, n - n / 3}};
    is("writev", n, writev(fd, parts, 2));
    is("offset", at + n, lseek(fd, 0, SEEK_CUR));
    put(at, buffer, n);
    return true;
}
static bool do_append(void) {
    long n = 1 + below(9000);
    if (n > MOST - size) return false;
    fill(buffer, n);
    note("append %ld", n);
    is("append", n, write(appending, buffer, n));
    put(size, buffer, n);
    return true;
}
static bool do_map_read(void) {
    long at, n;
    if (size == 0) return false;
    within(&at, &n);
    int how = below(2) && !unmapped ? MAP_SHARED : MAP_PRIVATE;
    note("mapped %s read %ld at %ld", how == MAP_SHARED ? "shared" : "privately", n, at);
    long base = at & -PAGE;
    unsigned char *map = mmap(NULL, at + n - base, PROT_READ, how, fd, base);
    if (map == MAP_FAILED) die("mmap", 0, errno);
    same("a mapping", map + (at - base), at, n);
    long end = base + ((at + n - base + PAGE - 1) & -PAGE);
    for (long i = size; i < end; i++)
        if (map[i - base] != 0) die("a mapping beyond the end", 0, map[i - base]);
    munmap(map, at + n - base);
    return true;
}
static bool do_map_write(void) {
    long at, n;
    if (unmapped) return false;
    anywhere(&at, &n);
    note("mapped write %ld at %ld", n, at);
    if (at + n > size) {
        is("ftruncate", 0, ftruncate(fd, at + n));
        resize(at + n);
    }
    long base = at & -PAGE;
    unsigned char *map = mmap(NULL, at + n - base, PROT_READ | PROT_WRITE, MAP_SHARED, fd, base);
    if (map == MAP_FAILED) die("mmap", 0, errno);
    fill(buffer, n);
    memcpy(map + (at - base), buffer, n);
    if (below(2)) is("msync", 0, msync(map, at + n - base, MS_SYNC));
    munmap(map, at + n - base);
    put(at, buffer, n);
    return true;
}
static bool do_truncate(void) {
    long to = below(3) ? below(size + 1) : below(MOST);
    bool by_name = below(4) == 0;
    note("truncate to %ld%s", to, by_name ? " by name" : "");
    is("truncate", 0, by_name ? truncate(path, to) : ftruncate(fd, to));
    resize(to);
    return true;
}
static bool allocates(int mode, const char *name, long at, long n) {
    note("fallocate %s %ld at %ld", name, n, at);
    if (fallocate(fd, mode, at, n) == 0) return true;
    if (errno != EOPNOTSUPP) die(name, 0, -errno);
    return false;
}
static bool do_allocate(void) {
    long at, n;
    anywhere(&at, &n);
    if (!allocates(0, "allocate", at, n)) return false;
    if (at + n > size) resize(at + n);
    return true;
}
static bool do_allocate_keep(void) {
    long at, n;
    anywhere(&at, &n);
    return allocates(FALLOC_FL_KEEP_SIZE, "allocate, keep", at, n);
}
static void zero(long at, long n) {
    if (at < size) memset(model + at, 0, n < size - at ? n : size - at);
}
static bool do_punch(void) {
    long at, n;
    anywhere(&at, &n);
    if (!allocates(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, "punch", at, n)) return false;
    zero(at, n);
    return true;
}
static bool do_zero(void) {
    long at, n;
    anywhere(&at, &n);
    if (!allocates(FALLOC_FL_ZERO_RANGE, "zero", at, n)) return false;
    if (at + n > size) resize(at + n);
    zero(at, n);
    return true;
}
static bool do_zero_keep(void) {
    long at, n;
    anywhere(&at, &n);
    if (!allocates(FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, "zero, keep", at, n)) return false;
    zero(at, n);
    return true;
}
static bool do_collapse(void) {
    long blocks = size / PAGE;
    if (blocks < 2) return false;
    long at = below(blocks - 1) * PAGE, n = PAGE * (1 + below(4));
    if (at + n >= size || !allocates(FALLOC_FL_COLLAPSE_RANGE, "collapse", at, n)) return false;
    memmove(model + at, model + at + n, size - at - n);
    size -= n;
    return true;
}
static bool do_insert(void) {
    long at = below(size / PAGE) * PAGE, n = PAGE * (1 + below(4));
    if (at >= size || size + n > MOST) return false;
    if (!allocates(FALLOC_FL_INSERT_RANGE, "insert", at, n)) return false;
    memmove(model + at + n, model + at, size - at);
    memset(model + at, 0, n);
    size += n;
    return true;
}
/* Within the file, in as many calls as it takes. */
static bool do_copy_range(void) {
    long at, n;
    if (size == 0) return false;
    within(&at, &n);
    long to = below(MOST);
    if (n > MOST - to) n = MOST - to;
    if (to < at + n && at < to + n) return false;
    note("copy_file_range %ld from %ld to %ld", n, at, to);
    off64_t from_at = at, to_at = to;
    for (long done = 0; done < n;) {
        ssize_t moved = copy_file_range(fd, &from_at, fd, &to_at, n - done, 0);
        if (moved <= 0) die("copy_file_range", n - done, moved < 0 ? -errno : 0);
        done += moved;
    }
    put(to, model + at, n);
    return true;
}
/* To another file and back to memory. */
static void other_has(const char *what, long at, long n) {
    is(what, n, pread(other, buffer, n + 1, 0));
    same(what, buffer, at, n);
}
static bool do_copy_out(void) {
    long at, n;
    if (size == 0) return false;
    within(&at, &n);
    note("copy_file_range out %ld at %ld", n, at);
    is("ftruncate", 0, ftruncate(other, 0));
    off64_t from = at, to = 0;
    for (ssize_t moved; to < n; is("to", from - at, to))
        if ((moved = copy_file_range(fd, &from, other, &to, n - to, 0)) <= 0)
            die("copy_file_range", n - to, moved < 0 ? -errno : 0);
    other_has("copy_file_range", at, n);
    return true;
}
static bool do_send(void) {
    long at, n;
    if (size == 0) return false;
    within(&at, &n);
    note("sendfile %ld at %ld", n, at);
    is("ftruncate", 0, ftruncate(other, 0));
    is("lseek", 0, lseek(other, 0, SEEK_SET));
    off_t from = at;
    for (ssize_t moved; from < at + n;)
        if ((moved = sendfile(other, fd, &from, at + n - from)) <= 0)
            die("sendfile", at + n - from, moved < 0 ? -errno : 0);
    other_has("sendfile", at, n);
    return true;
}
static bool do_splice(void) {
    static int ends[2];
    long at, n;
    if (size == 0) return false;
    if (!ends[1]) {
        int made = pipe(ends);
        if (made == -1 && errno == ENOSYS) return false;
        is("pipe", 0, made);
    }
    within(&at, &n);
    if (n > 60000) n = 60000;
    note("splice %ld at %ld", n, at);
    off64_t from = at;
    for (long done = 0; done < n;) {
        ssize_t moved = splice(fd, &from, ends[1], NULL, n - done, 0);
        if (moved <= 0) die("splice", n - done, moved < 0 ? -errno : 0);
        is("the pipe", moved, read(ends[0], buffer, moved));
        same("splice", buffer, at + done, moved);
        done += moved;
    }
    long to = below(MOST);
    if (n > MOST - to) n = MOST - to;
    fill(buffer, n);
    is("the pipe", n, write(ends[1], buffer, (unsigned)n));
    off64_t there = to;
    for (long done = 0; done < n;) {
        ssize_t moved = splice(ends[0], NULL, fd, &there, n - done, 0);
        if (moved <= 0) die("splice in", n - done, moved < 0 ? -errno : 0);
        done += moved;
    }
    put(to, buffer, n);
    return true;
}
static bool do_sync(void) {
    long kind = below(4);
    note("sync %ld", kind);
    is("sync", 0, kind ? fdatasync(fd) : fsync(fd));
    return true;
}
static bool do_advise(void) {
    note("advise");
    int advice = below(2) ? POSIX_FADV_DONTNEED : POSIX_FADV_WILLNEED;
    is("posix_fadvise", 0, posix_fadvise(fd, 0, 0, advice));
    return true;
}
static bool do_stat(void) {
    struct stat attr;
    note("stat");
    is("fstat", 0, fstat(fd, &attr));
    is("fstat", size, attr.st_size);
    is("stat", 0, stat(path, &attr));
    is("stat", size, attr.st_size);
    is("SEEK_END", size, lseek(fd, 0, SEEK_END));
    return true;
}
/* Holes are zeros. */
static bool do_seek(void) {
    if (size == 0) return false;
    long at = below(size);
    note("SEEK_DATA at %ld", at);
    long data = lseek(fd, at, SEEK_DATA);
    if (data < 0 && errno != ENXIO) die("SEEK_DATA", 0, -errno);
    if (data < 0) data = size;
    if (data < at) die("SEEK_DATA", at, data);
    for (long i = at; i < data; i++)
        if (model[i] != 0) die("data in a hole", i, data);
    long hole = lseek(fd, at, SEEK_HOLE);
    if (hole < at || hole > size) die("SEEK_HOLE", at, hole);
    return true;
}
static bool do_open(void) {
    long kind = below(3);
    note("open again %ld", kind);
    if (kind == 0) {
        is("close", 0, close(fd));
        if ((fd = open(path, O_RDWR)) < 0) die("open", 0, -errno);
    } else if (kind == 1) {
        is("close", 0, close(appending));
        if ((appending = open(path, O_WRONLY | O_APPEND)) < 0) die("open", 0, -errno);
    } else {
        int again = dup(fd);
        is("close", 0, close(fd));
        fd = again;
    }
    return true;
}
static bool do_whole(void) {
    note("the whole file");
    int whole = open(path, O_RDONLY);
    long found = 0;
    for (ssize_t n; (n = read(whole, buffer + found, sizeof buffer - found)) > 0;) found += n;
    close(whole);
    is("the whole file", size, found);
    same("the whole file", buffer, 0, size);
    return true;
}

static const struct {
    const char *name;
    bool (*run)(void);
    int weight;
} kinds[] = {
    {"read", do_read, 12}, {"readv", do_read_offset, 6}, {"write", do_write, 12},
    {"writev", do_write_offset, 6}, {"append", do_append, 4}, {"mapread", do_map_read, 6},
    {"mapwrite", do_map_write, 6}, {"truncate", do_truncate, 6}, {"allocate", do_allocate, 3},
    {"allocate_keep", do_allocate_keep, 2}, {"punch", do_punch, 5}, {"zero", do_zero, 3},
    {"zero_keep", do_zero_keep, 2}, {"collapse", do_collapse, 1}, {"insert", do_insert, 1},
    {"copy", do_copy_range, 4}, {"copy_out", do_copy_out, 4}, {"sendfile", do_send, 4},
    {"splice", do_splice, 4}, {"sync", do_sync, 1}, {"advise", do_advise, 1}, {"stat", do_stat, 4},
    {"seek", do_seek, 3}, {"open", do_open, 3}, {"whole", do_whole, 2},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

int main(int argc, char **argv) {
    unmapped = argc > 4 && strcmp(argv[4], "unmapped") == 0;
    long all = 0, done[KINDS] = {0}, count = atol(argv[2]);
    state = strtoull(argv[3], NULL, 10) * 0x9e3779b97f4a7c15ull + 1;
    snprintf(path, sizeof path, "%s/fsx", argv[1]);
    snprintf(beside, sizeof beside, "%s/fsx.other", argv[1]);
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    appending = open(path, O_WRONLY | O_APPEND);
    other = open(beside, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || appending < 0 || other < 0) return perror(path), 1;
    for (int i = 0; i < KINDS; i++) all += kinds[i].weight;
    for (number = 0; number < count; number++) {
        long pick = below(all);
        int kind = 0;
        while ((pick -= kinds[kind].weight) >= 0) kind++;
        snprintf(operations[number % LOG], sizeof *operations, "%ld: nothing", number);
        done[kind] += kinds[kind].run();
    }
    do_whole();
    puts("end");
    for (int i = 0; i < KINDS; i++) printf("%s %ld\n", kinds[i].name, done[i]);
    return 0;
}
