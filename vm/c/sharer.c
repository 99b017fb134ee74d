/* A client whose operations a test judges with those of others: it does what comes in by standard
 * input, one operation a line, and says what came of it.
 *
 *   sharer DIRECTORY
 *
 * The world is that of tests/src/linear/history.rs: the directory and `d` in it, names n0 to n3 in
 * both, and two files that stay open. A line has a letter and numbers. An answer is a line with the
 * numbers of inode, links and pages, `-`, and what a page has, each or `-`; or `E` and an error. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, FILES = 2, ABSENT = 256, TORN = 257, TRIES = 100 };

static const char *directories[] = {".", "d"};
static int both[FILES], appending[FILES];
static unsigned char page[PAGE];

static const char *at(long directory, long name, int slot) {
    static char paths[2][40];
    snprintf(paths[slot], sizeof *paths, "%s/n%ld", directories[directory & 1], name);
    return paths[slot];
}

static int open_or_die(const char *path, int flags) {
    int fd = open(path, flags);
    if (fd < 0) {
        printf("%s: %s\n", path, strerror(errno));
        exit(1);
    }
    return fd;
}

/* What a page shows that was read. */
static int shown(ssize_t got) {
    if (got == 0) return ABSENT;
    for (ssize_t i = 1; i < got; i++)
        if (page[i] != page[0]) return TORN;
    return got == PAGE ? page[0] : TORN;
}

static void answer(long result) {
    if (result < 0) {
        printf("E %d\n", errno);
    } else {
        puts("- - - - -");
    }
}

/* Looks a name up. One that is replaced between the kernel's two questions is looked up again. */
static int look(const char *path, struct stat *attr) {
    int result = -1;
    for (int i = 0; i < TRIES; i++) {
        result = lstat(path, attr);
        if (result == 0 || errno != ESTALE) break;
    }
    return result;
}

static void does(char op, long a, long b, long c, long d) {
    struct stat attr;
    int result;
    switch (op) {
    case 'c':
        result = open(at(a, b, 0), O_CREAT | O_EXCL | O_RDWR, 0644);
        if (result < 0 || fstat(result, &attr) < 0) return answer(-1);
        close(result);
        printf("%lu - - - -\n", attr.st_ino);
        return;
    case 'm':
        return answer(mkdir(at(a, b, 0), 0755));
    case 'u':
        return answer(unlink(at(a, b, 0)));
    case 'd':
        return answer(rmdir(at(a, b, 0)));
    case 'r':
        return answer(renameat2(AT_FDCWD, at(a, b, 0), AT_FDCWD, at(c, d, 1), 0));
    case 'n':
        return answer(renameat2(AT_FDCWD, at(a, b, 0), AT_FDCWD, at(c, d, 1), RENAME_NOREPLACE));
    case 'x':
        return answer(renameat2(AT_FDCWD, at(a, b, 0), AT_FDCWD, at(c, d, 1), RENAME_EXCHANGE));
    case 'k': {
        char path[40];
        snprintf(path, sizeof path, "/proc/self/fd/%d", both[a & 1]);
        return answer(linkat(AT_FDCWD, path, AT_FDCWD, at(b, c, 0), AT_SYMLINK_FOLLOW));
    }
    case 'l':
        if (look(at(a, b, 0), &attr) < 0) return answer(-1);
        printf("%lu - - - -\n", attr.st_ino);
        return;
    case 's':
        if (fstat(both[a & 1], &attr) < 0) return answer(-1);
        if (attr.st_size % PAGE != 0) attr.st_size = -PAGE;
        printf("%lu %lu %ld - -\n", attr.st_ino, attr.st_nlink, (long)attr.st_size / PAGE);
        return;
    case 'p': {
        ssize_t got = pread(both[a & 1], page, PAGE, b * PAGE);
        if (got < 0) return answer(-1);
        printf("- - - - %d\n", shown(got));
        return;
    }
    case 'w':
        memset(page, (int)c, PAGE);
        return answer(pwrite(both[a & 1], page, PAGE, b * PAGE));
    case 'a':
        memset(page, (int)b, PAGE);
        return answer(write(appending[a & 1], page, PAGE));
    case 't':
        return answer(ftruncate(both[a & 1], b * PAGE));
    default:
        puts("what?");
    }
}

int main(int argc, char **argv) {
    if (argc != 2) return fputs("sharer DIRECTORY\n", stderr), 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (chdir(argv[1]) != 0) return puts("no such directory"), 1;
    for (int i = 0; i < FILES; i++) {
        both[i] = open_or_die(at(0, i, 0), O_RDWR);
        appending[i] = open_or_die(at(0, i, 0), O_WRONLY | O_APPEND);
    }
    puts("ready");
    char line[100];
    while (fgets(line, sizeof line, stdin) != NULL) {
        char op = 0;
        long a = 0, b = 0, c = 0, d = 0;
        sscanf(line, "%c %ld %ld %ld %ld", &op, &a, &b, &c, &d);
        if (op == 'q') break;
        does(op, a, b, c, d);
    }
    return 0;
}
