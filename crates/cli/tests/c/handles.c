/* File handles, as an NFS server has them: numbers of inodes that a kernel may never have heard
 * of.
 *
 *   handles make DIRECTORY KEPT    makes files, and keeps their handles in the file KEPT
 *   handles open DIRECTORY KEPT    opens them, and prints a line for each that is wrong, and
 *                                  `end` */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILES = 20, LINK = FILES, ROOT, DEEP, GONE, ALL };
struct kept {
    struct file_handle handle;
    unsigned char bytes[MAX_HANDLE_SZ];
    ino_t ino;
};
static struct kept kept[ALL];

static void must(int good, const char *what) {
    if (good) return;
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}
static void name(char *to, int i) {
    if (i == LINK) strcpy(to, "link");
    else if (i == ROOT) strcpy(to, ".");
    else if (i == DEEP) strcpy(to, "a/b/c");
    else if (i == GONE) strcpy(to, "gone");
    else sprintf(to, i % 2 ? "a/b/c/%d" : "%d", i);
}
static void write_to(int dir, int i) {
    char path[40];
    name(path, i);
    int fd = openat(dir, path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    must(fd >= 0 && write(fd, path, sizeof path) == sizeof path && close(fd) == 0, path);
}
static void make(int dir) {
    mkdirat(dir, "a", 0700), mkdirat(dir, "a/b", 0700), mkdirat(dir, "a/b/c", 0700);
    for (int i = 0; i < FILES; i++) write_to(dir, i);
    write_to(dir, GONE);
    unlinkat(dir, "link", 0);
    must(symlinkat("where/it/leads", dir, "link") == 0, "symlink");
    for (int i = 0; i < ALL; i++) {
        char path[40];
        int mount;
        struct stat attr;
        name(path, i);
        kept[i].handle.handle_bytes = MAX_HANDLE_SZ;
        must(name_to_handle_at(dir, path, &kept[i].handle, &mount, 0) == 0, path);
        must(fstatat(dir, path, &attr, AT_SYMLINK_NOFOLLOW) == 0, path);
        kept[i].ino = attr.st_ino;
    }
    must(unlinkat(dir, "gone", 0) == 0, "unlink");
}
static int check(int dir, int i) {
    char path[40], found[40];
    struct stat attr;
    name(path, i);
    int flags = i == LINK             ? O_PATH | O_NOFOLLOW
                : i > LINK && i < GONE ? O_RDONLY | O_DIRECTORY
                                       : O_RDWR;
    int fd = open_by_handle_at(dir, &kept[i].handle, flags);
    if (i == GONE) return fd < 0 && errno == ESTALE;
    if (fd < 0 || fstat(fd, &attr) != 0 || attr.st_ino != kept[i].ino) return 0;
    if (i == LINK)
        return readlinkat(fd, "", found, sizeof found) == 14 &&
               !memcmp(found, "where/it/leads", 14);
    if (i == ROOT) return faccessat(fd, "a/b", F_OK, 0) == 0;
    if (i == DEEP)
        return faccessat(fd, "1", F_OK, 0) == 0 && faccessat(fd, "../../../0", F_OK, 0) == 0;
    if (pread(fd, found, sizeof found, 0) != sizeof found || strcmp(found, path) != 0) return 0;
    return pwrite(fd, path, sizeof path, 0) == sizeof path && close(fd) == 0;
}

int main(int argc, char **argv) {
    (void)argc;
    int dir = open(argv[2], O_RDONLY | O_DIRECTORY);
    int makes = strcmp(argv[1], "make") == 0, wrong = 0;
    int keeps = open(argv[3], makes ? O_WRONLY | O_CREAT | O_TRUNC : O_RDONLY, 0600);
    must(dir >= 0 && keeps >= 0, "open");
    if (makes) {
        make(dir);
        must(write(keeps, kept, sizeof kept) == sizeof kept, "write");
    } else {
        must(read(keeps, kept, sizeof kept) == sizeof kept, "read");
    }
    /* In what it has just made, too. */
    for (int i = 0; i < ALL; i++)
        if (!check(dir, i)) {
            char path[40];
            name(path, i);
            printf("%s: %s\n", path, strerror(errno));
            wrong++;
        }
    puts(wrong ? "wrong" : "end");
    return 0;
}
