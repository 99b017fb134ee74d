/* One pass over a file or over the names of a folder: what a guest sends for it is counted.
 *
 *   passes write FILE SIZE BUFFER random|sequence   writes all of FILE by BUFFER bytes, syncs it
 *   passes read FILE SIZE BUFFER random|sequence    reads it, and checks each byte
 *   passes make FOLDER 0                            makes the folder
 *   passes create FOLDER COUNT                      makes files, closing each, syncs the folder
 *   passes list FOLDER COUNT                        reads the folder, which has so many files
 *   passes remove FOLDER COUNT                      removes them, syncs the folder
 *
 * Several come one after the other with a + between them. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void fail(const char *what) {
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

static long must(long result, const char *what) {
    if (result < 0) fail(what);
    return result;
}

/* The byte that a file has at `place`. */
static unsigned char byte_at(uint64_t place) {
    return (unsigned char)(place ^ place >> 8 ^ place >> 16);
}

/* Each buffer once, in order or in one that is the same in each run. */
static long *order_of(long count, int random) {
    long *order = calloc(count, sizeof *order);
    if (order == NULL) fail("calloc");
    for (long at = 0; at < count; at++) order[at] = at;
    uint64_t state = 0x9e3779b97f4a7c15u;
    for (long at = count - 1; random && at > 0; at--) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        long other = (long)((state >> 33) % (uint64_t)(at + 1));
        long kept = order[at];
        order[at] = order[other];
        order[other] = kept;
    }
    return order;
}

static void pass(int writes, const char *path, long size, long buffer, int random) {
    int fd = must(open(path, writes ? O_WRONLY | O_CREAT : O_RDONLY, 0644), "open");
    unsigned char *bytes = malloc(buffer);
    if (bytes == NULL) fail("malloc");
    long count = size / buffer, *order = order_of(count, random);
    for (long number = 0; number < count; number++) {
        off_t at = order[number] * buffer;
        if (writes) {
            for (long i = 0; i < buffer; i++) bytes[i] = byte_at(at + i);
            if (must(pwrite(fd, bytes, buffer, at), "pwrite") != buffer) fail("a short write");
            continue;
        }
        if (must(pread(fd, bytes, buffer, at), "pread") != buffer) fail("a short read");
        for (long i = 0; i < buffer; i++)
            if (bytes[i] != byte_at(at + i)) fail("another byte");
    }
    if (writes) must(fsync(fd), "fsync");
    must(close(fd), "close");
    free(order);
    free(bytes);
}

static void sync_folder(const char *folder) {
    int fd = must(open(folder, O_RDONLY | O_DIRECTORY), "open");
    must(fsync(fd), "fsync");
    must(close(fd), "close");
}

static void names(int makes, const char *folder, long count) {
    char path[4096];
    for (long number = 0; number < count; number++) {
        snprintf(path, sizeof path, "%s/file-%ld", folder, number);
        if (makes)
            must(close(must(open(path, O_WRONLY | O_CREAT | O_EXCL, 0644), "create")), "close");
        else
            must(unlink(path), "unlink");
    }
    sync_folder(folder);
}

static void list(const char *folder, long count) {
    DIR *all = opendir(folder);
    if (all == NULL) fail("opendir");
    long found = 0;
    for (struct dirent *entry; (entry = readdir(all)) != NULL;) found += entry->d_name[0] != '.';
    closedir(all);
    if (found != count) fail("another number of files");
}

static int act(int argc, char **argv) {
    const char *what = argc > 3 ? argv[1] : "";
    if (argc == 6 && (strcmp(what, "write") == 0 || strcmp(what, "read") == 0)) {
        long buffer = atol(argv[4]);
        if (buffer <= 0) return 2;
        pass(what[0] == 'w', argv[2], atol(argv[3]), buffer, strcmp(argv[5], "random") == 0);
    } else if (strcmp(what, "create") == 0 || strcmp(what, "remove") == 0) {
        names(what[0] == 'c', argv[2], atol(argv[3]));
    } else if (strcmp(what, "make") == 0) {
        must(mkdir(argv[2], 0755), "mkdir");
    } else if (strcmp(what, "list") == 0) {
        list(argv[2], atol(argv[3]));
    } else {
        return fputs("passes WHAT PATH COUNT [BUFFER ORDER]\n", stderr), 2;
    }
    return 0;
}

int main(int argc, char **argv) {
    int first = 1, last = 1;
    for (;; first = ++last) {
        while (last < argc && strcmp(argv[last], "+") != 0) last++;
        /* Each has a word before it, as if it were a program's name. */
        int outcome = act(last - first + 1, argv + first - 1);
        if (outcome != 0 || last >= argc) return outcome;
    }
}
