// gdbm: stores N 4-byte keys, opens the database again and fetches them all. Prints microseconds.
// Usage: gdbm FILE N [nommap]; FILE is made anew.
#include <gdbm.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// No sync on any side: gdbm_close would, and cannot be told not to.
int fsync(int file) {
    (void)file;
    return 0;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static GDBM_FILE open_database(const char *name, int flags) {
    GDBM_FILE database = gdbm_open(name, 0, flags, 0644, NULL);
    if (!database) {
        fprintf(stderr, "%s: %s\n", name, gdbm_strerror(gdbm_errno));
        exit(1);
    }
    return database;
}

// The value that belongs to a key.
static uint32_t value_of(uint32_t key) { return key * 2654435761u + 1; }

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: %s FILE N [nommap]\n", argv[0]);
        return 2;
    }
    uint32_t count = strtoul(argv[2], NULL, 10);
    int flags = argc > 3 && !strcmp(argv[3], "nommap") ? GDBM_NOMMAP : 0;

    // Of a run before; and a volume is mounted when it is first named.
    unlink(argv[1]);
    double begin = now();
    GDBM_FILE database = open_database(argv[1], GDBM_NEWDB | flags);
    for (uint32_t key = 0; key < count; key++) {
        uint32_t value = value_of(key);
        datum k = {(char *)&key, sizeof key}, v = {(char *)&value, sizeof value};
        if (gdbm_store(database, k, v, GDBM_INSERT) != 0) {
            fprintf(stderr, "store: %s\n", gdbm_strerror(gdbm_errno));
            return 1;
        }
    }
    gdbm_close(database);
    double stored = now();

    database = open_database(argv[1], GDBM_READER | flags);
    for (uint32_t key = 0; key < count; key++) {
        uint32_t value = value_of(key);
        datum k = {(char *)&key, sizeof key};
        datum v = gdbm_fetch(database, k);
        if (v.dsize != sizeof value || memcmp(v.dptr, &value, sizeof value)) {
            fprintf(stderr, "fetch: key %u has the wrong value\n", key);
            return 1;
        }
        free(v.dptr);
    }
    gdbm_close(database);
    double fetched = now();

    printf("store %.1f\nfetch %.1f\ntotal %.1f\n", stored - begin, fetched - stored,
           fetched - begin);
    return 0;
}
