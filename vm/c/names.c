/* Does operations to names by chance: files with several names in several directories, and files
 * that are open and have none. Each is compared with a model in memory, to every byte.
 *
 *   names DIRECTORY OPERATIONS SEED
 *
 * Prints `end` and how often each operation was done, or what differed and the operations before.
 * Readers of their own compare once more the files that it leaves in DIRECTORY. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DIRECTORIES = 5, NAMES = 12, FILES = 80, HELD = 4, MOST = 40000, LOG = 40, NONE = -1 };

/* The model: a directory that is there has a file or none for each name. */
static struct {
    unsigned char bytes[MOST];
    long size, links, opens;
} files[FILES];
static bool there[DIRECTORIES];
static int entries[DIRECTORIES][NAMES];
static struct {
    int fd, file;
} held[HELD];

static unsigned char buffer[MOST + 1];
static char paths[3][500];
static const char *top;
static uint64_t state;
static long number;
static char operations[LOG][200];

static uint64_t random64(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}
static long below(long n) { return n > 0 ? (long)(random64() % (uint64_t)n) : 0; }

static void note(const char *format, ...) {
    va_list list;
    va_start(list, format);
    char *line = operations[number % LOG];
    int n = snprintf(line, sizeof *operations, "%ld: ", number);
    vsnprintf(line + n, sizeof *operations - n, format, list);
    va_end(list);
}
static void die(const char *what, long expected, long found) {
    printf("operation %ld: %s: expected %ld, found %ld\n", number, what, expected, found);
    for (long i = number < LOG ? 0 : number - LOG + 1; i <= number; i++) puts(operations[i % LOG]);
    exit(1);
}
static void is(const char *what, long expected, long found) {
    if (expected != found) die(what, expected, found);
}
/* The result of a call: 0, or the number of the error. */
static long error_of(long result) { return result < 0 ? errno : 0; }

/* ---- places ---- */

struct place {
    int directory, name;
};
static struct place anywhere(void) {
    return (struct place){(int)below(DIRECTORIES), (int)below(NAMES)};
}
static const char *directory_path(int directory, int slot) {
    snprintf(paths[slot], sizeof *paths, "%s/d%d", top, directory);
    return paths[slot];
}
/* Names of several lengths. */
static void name_of(int name, char *to, size_t length) {
    snprintf(to, length, "n%d-%.*s", name, name * 9, "............................................"
             "............................................................................");
}
static const char *path_of(struct place place, int slot) {
    char name[200];
    name_of(place.name, name, sizeof name);
    snprintf(paths[slot], sizeof *paths, "%s/d%d/%s", top, place.directory, name);
    return paths[slot];
}
static int *entry(struct place place) { return &entries[place.directory][place.name]; }
static int file_at(struct place place) {
    return there[place.directory] ? *entry(place) : NONE;
}
/* A place that has a file, if one is found. */
static struct place with_file(void) {
    struct place place = anywhere();
    for (int tries = 0; tries < 60 && file_at(place) == NONE; tries++) place = anywhere();
    return place;
}
static bool is_empty(int directory) {
    for (int name = 0; name < NAMES; name++)
        if (entries[directory][name] != NONE) return false;
    return true;
}
static int unused(void) {
    for (int file = 0; file < FILES; file++)
        if (files[file].links == 0 && files[file].opens == 0) return file;
    die("a file of the model that is free", 1, 0);
    return NONE;
}

/* ---- contents ---- */

static void fill(long n) {
    uint64_t word = random64() | 1;
    for (long i = 0; i < n; i++) buffer[i] = (unsigned char)((word >> (i % 8 * 8)) + i / 8);
}
static void resize(int file, long to) {
    for (long i = files[file].size; i < to; i++) files[file].bytes[i] = 0;
    files[file].size = to;
}
static void compare(int fd, int file) {
    struct stat attr;
    is("fstat", 0, fstat(fd, &attr));
    is("its size", files[file].size, attr.st_size);
    is("its links", files[file].links, (long)attr.st_nlink);
    long found = 0;
    for (ssize_t n; found < (long)sizeof buffer; found += n) {
        n = pread(fd, buffer + found, sizeof buffer - found, found);
        if (n < 0) die("pread", 0, errno);
        if (n == 0) break;
    }
    is("its length", files[file].size, found);
    for (long i = 0; i < found; i++)
        if (buffer[i] != files[file].bytes[i]) {
            printf("byte %ld\n", i);
            die("a byte", files[file].bytes[i], buffer[i]);
        }
}
static void change(int fd, int file) {
    long at = below(files[file].size + 3000), n = 1 + below(9000);
    if (at >= MOST) at = MOST - 1;
    if (n > MOST - at) n = MOST - at;
    fill(n);
    is("pwrite", n, pwrite(fd, buffer, n, at));
    if (at + n > files[file].size) resize(file, at + n);
    memcpy(files[file].bytes + at, buffer, n);
}

/* ---- operations; false if there is nothing to be done ---- */

static bool do_create(void) {
    struct place place = anywhere();
    int file = file_at(place), flags = below(2) ? O_EXCL : below(2) ? O_TRUNC : 0;
    note("create %s, flags %o", path_of(place, 0), flags);
    int fd = open(paths[0], O_RDWR | O_CREAT | flags, 0644);
    if (!there[place.directory]) return is("create", ENOENT, error_of(fd)), true;
    if (file != NONE && flags == O_EXCL) return is("create", EEXIST, error_of(fd)), true;
    is("create", 0, error_of(fd));
    if (file == NONE) {
        *entry(place) = file = unused();
        files[file].size = 0;
        files[file].links = 1;
    } else if (flags == O_TRUNC) {
        files[file].size = 0;
    }
    if (below(2)) change(fd, file);
    is("close", 0, close(fd));
    return true;
}
static bool do_write(void) {
    struct place place = with_file();
    int file = file_at(place);
    if (file == NONE) return false;
    note("write %s", path_of(place, 0));
    int fd = open(paths[0], O_RDWR);
    is("open", 0, error_of(fd));
    change(fd, file);
    if (below(8) == 0) is("fsync", 0, fsync(fd));
    is("close", 0, close(fd));
    return true;
}
static bool do_read(void) {
    struct place place = with_file();
    int file = file_at(place);
    note("read %s", path_of(place, 0));
    int fd = open(paths[0], O_RDONLY);
    if (file == NONE) return is("open", ENOENT, error_of(fd)), true;
    is("open", 0, error_of(fd));
    compare(fd, file);
    is("close", 0, close(fd));
    return true;
}
static bool do_truncate(void) {
    struct place place = with_file();
    int file = file_at(place);
    if (file == NONE) return false;
    long to = below(4) ? below(files[file].size + 1) : below(MOST);
    note("truncate %s to %ld", path_of(place, 0), to);
    is("truncate", 0, error_of(truncate(paths[0], to)));
    resize(file, to);
    return true;
}
static bool do_link(void) {
    struct place from = with_file(), to = anywhere();
    int file = file_at(from);
    note("link %s to %s", path_of(from, 0), path_of(to, 1));
    long error = error_of(link(paths[0], paths[1]));
    if (file == NONE || !there[to.directory]) return is("link", ENOENT, error), true;
    if (*entry(to) != NONE) return is("link", EEXIST, error), true;
    is("link", 0, error);
    *entry(to) = file;
    files[file].links++;
    return true;
}
static bool do_unlink(void) {
    struct place place = with_file();
    int file = file_at(place);
    note("unlink %s", path_of(place, 0));
    long error = error_of(unlink(paths[0]));
    if (file == NONE) return is("unlink", ENOENT, error), true;
    is("unlink", 0, error);
    *entry(place) = NONE;
    files[file].links--;
    return true;
}
static bool do_rename(void) {
    struct place from = with_file(), to = below(3) ? anywhere() : with_file();
    int file = file_at(from), other = file_at(to);
    unsigned flags = below(3) == 0 ? RENAME_NOREPLACE : below(3) == 0 ? RENAME_EXCHANGE : 0;
    note("rename %s to %s, flags %u", path_of(from, 0), path_of(to, 1), flags);
    long error = error_of(renameat2(AT_FDCWD, paths[0], AT_FDCWD, paths[1], flags));
    if (file == NONE || !there[to.directory]) return is("rename", ENOENT, error), true;
    if (flags == RENAME_EXCHANGE && other == NONE) return is("rename", ENOENT, error), true;
    if (flags == RENAME_NOREPLACE && other != NONE) return is("rename", EEXIST, error), true;
    is("rename", 0, error);
    /* Two names of one file stay as they are. */
    if (file == other) return true;
    *entry(to) = file;
    *entry(from) = flags == RENAME_EXCHANGE ? other : NONE;
    if (other != NONE && flags == 0) files[other].links--;
    return true;
}
static bool do_mkdir(void) {
    int directory = (int)below(DIRECTORIES);
    note("mkdir %s", directory_path(directory, 0));
    is("mkdir", there[directory] ? EEXIST : 0, error_of(mkdir(paths[0], 0755)));
    there[directory] = true;
    return true;
}
static bool do_rmdir(void) {
    int directory = (int)below(DIRECTORIES);
    note("rmdir %s", directory_path(directory, 0));
    long error = error_of(rmdir(paths[0]));
    if (!there[directory]) return is("rmdir", ENOENT, error), true;
    if (!is_empty(directory)) return is("rmdir", ENOTEMPTY, error), true;
    is("rmdir", 0, error);
    there[directory] = false;
    return true;
}
static bool do_rename_directory(void) {
    int from = (int)below(DIRECTORIES), to = (int)below(DIRECTORIES);
    note("rename %s to %s", directory_path(from, 0), directory_path(to, 1));
    long error = error_of(rename(paths[0], paths[1]));
    if (!there[from]) return is("rename", ENOENT, error), true;
    if (from == to) return is("rename", 0, error), true;
    if (there[to] && !is_empty(to)) return is("rename", ENOTEMPTY, error), true;
    is("rename", 0, error);
    there[from] = false;
    there[to] = true;
    for (int name = 0; name < NAMES; name++) {
        entries[to][name] = entries[from][name];
        entries[from][name] = NONE;
    }
    return true;
}
static bool do_list(void) {
    int directory = (int)below(DIRECTORIES);
    note("list %s", directory_path(directory, 0));
    DIR *stream = opendir(paths[0]);
    if (!there[directory]) return is("opendir", ENOENT, stream ? 0 : errno), true;
    if (!stream) die("opendir", 0, errno);
    int expected = 2, found = 0;
    for (int name = 0; name < NAMES; name++) expected += entries[directory][name] != NONE;
    for (struct dirent *item; (item = readdir(stream)); found++) {
        if (item->d_name[0] == '.' && strlen(item->d_name) <= 2) continue;
        char name[200];
        int which = atoi(item->d_name + 1);
        if (which < 0 || which >= NAMES) die("a name", 0, which);
        name_of(which, name, sizeof name);
        is("a name", 0, strcmp(name, item->d_name));
        if (entries[directory][which] == NONE) die("a name that is not there", 0, which);
    }
    closedir(stream);
    return is("names", expected, found), true;
}
/* Keeps a file open while its names change. */
static bool do_hold(void) {
    int slot = (int)below(HELD);
    if (held[slot].file != NONE) {
        note("%s what is held in %d", below(2) ? "read" : "write", slot);
        compare(held[slot].fd, held[slot].file);
        change(held[slot].fd, held[slot].file);
        if (below(3)) return true;
        is("close", 0, close(held[slot].fd));
        files[held[slot].file].opens--;
        held[slot].file = NONE;
        return true;
    }
    struct place place = with_file();
    int file = file_at(place);
    if (file == NONE) return false;
    note("hold %s in %d", path_of(place, 0), slot);
    held[slot].fd = open(paths[0], O_RDWR);
    is("open", 0, error_of(held[slot].fd));
    held[slot].file = file;
    files[file].opens++;
    return true;
}
static bool do_symlink(void) {
    struct place to = with_file();
    int file = file_at(to);
    char link_path[500], target[500] = "";
    snprintf(link_path, sizeof link_path, "%s/link", top);
    note("symlink to %s", path_of(to, 0));
    is("symlink", 0, error_of(symlink(paths[0] + strlen(top) + 1, link_path)));
    ssize_t n = readlink(link_path, target, sizeof target - 1);
    is("readlink", (long)strlen(paths[0] + strlen(top) + 1), n);
    is("its target", 0, strcmp(target, paths[0] + strlen(top) + 1));
    int fd = open(link_path, O_RDONLY);
    is("open by the link", file == NONE ? ENOENT : 0, error_of(fd));
    if (file != NONE) compare(fd, file), close(fd);
    is("unlink", 0, error_of(unlink(link_path)));
    return true;
}

static const struct {
    const char *name;
    bool (*run)(void);
    int weight;
} kinds[] = {
    {"create", do_create, 14}, {"write", do_write, 8}, {"read", do_read, 12},
    {"truncate", do_truncate, 5}, {"link", do_link, 6}, {"unlink", do_unlink, 6},
    {"rename", do_rename, 12}, {"mkdir", do_mkdir, 6}, {"rmdir", do_rmdir, 3},
    {"rename_directory", do_rename_directory, 3}, {"list", do_list, 4}, {"hold", do_hold, 6},
    {"symlink", do_symlink, 2},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

int main(int argc, char **argv) {
    if (argc != 4) return fputs("names DIRECTORY OPERATIONS SEED\n", stderr), 2;
    long all = 0, done[KINDS] = {0}, count = atol(argv[2]);
    top = argv[1];
    state = strtoull(argv[3], NULL, 10) * 0x9e3779b97f4a7c15ull + 1;
    for (int i = 0; i < DIRECTORIES * NAMES; i++) entries[i / NAMES][i % NAMES] = NONE;
    for (int i = 0; i < HELD; i++) held[i].file = NONE;
    for (int i = 0; i < KINDS; i++) all += kinds[i].weight;
    for (number = 0; number < count; number++) {
        long pick = below(all);
        int kind = 0;
        while ((pick -= kinds[kind].weight) >= 0) kind++;
        note("nothing");
        done[kind] += kinds[kind].run();
    }
    note("everything");
    for (int slot = 0; slot < HELD; slot++)
        if (held[slot].file != NONE) compare(held[slot].fd, held[slot].file);
    for (int i = 0; i < DIRECTORIES * NAMES; i++) {
        struct place place = {i / NAMES, i % NAMES};
        int file = file_at(place), fd = open(path_of(place, 0), O_RDONLY);
        is("open", file == NONE ? ENOENT : 0, error_of(fd));
        if (file != NONE) compare(fd, file), close(fd);
    }
    puts("end");
    for (int i = 0; i < KINDS; i++) printf("%s %ld\n", kinds[i].name, done[i]);
    return 0;
}
