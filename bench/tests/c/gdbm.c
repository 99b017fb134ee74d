/* gdbm on a volume. Usage: gdbm FILE store|fetch N. Stores N pairs, replaces and deletes some;
 * or checks in another process that all that is there. (gdbm_reorganize maps its file whatever it
 * is told, which a volume inside the process cannot offer.) */
#include <gdbm.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const char *what, uint32_t key) {
    fprintf(stderr, "%s, key %u: %s\n", what, key, gdbm_strerror(gdbm_errno));
    exit(1);
}

/* Values have lengths from 0 to 2,000 bytes and differ from key to key. */
static datum value_of(uint32_t key, uint32_t version) {
    static char bytes[2000];
    uint32_t x = key * 2654435761u + version * 40503u;
    datum value = {bytes, x % 2001};
    for (int i = 0; i < value.dsize; i++) bytes[i] = (x = x * 1664525u + 1013904223u) >> 24;
    return value;
}

static datum key_of(uint32_t *key) { return (datum){(char *)key, sizeof *key}; }

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    uint32_t count = atoi(argv[3]), key;
    int store = !strcmp(argv[2], "store");
    /* Files of a volume inside the process cannot be mapped. */
    int flags = (store ? GDBM_NEWDB : GDBM_READER) | GDBM_NOMMAP;
    GDBM_FILE db = gdbm_open(argv[1], 0, flags, 0644, NULL);
    if (!db) die("open", 0);
    if (store) {
        for (key = 0; key < count; key++)
            if (gdbm_store(db, key_of(&key), value_of(key, 0), GDBM_INSERT)) die("store", key);
        for (key = 0; key < count; key += 3)
            if (gdbm_store(db, key_of(&key), value_of(key, 1), GDBM_REPLACE)) die("replace", key);
        for (key = 0; key < count; key += 5)
            if (gdbm_delete(db, key_of(&key))) die("delete", key);
        if (gdbm_sync(db)) die("sync", 0);
    }
    for (key = 0; key < count; key++) {
        datum found = gdbm_fetch(db, key_of(&key));
        if (key % 5 == 0) {
            if (found.dptr) die("deleted and there", key);
            continue;
        }
        datum expected = value_of(key, key % 3 == 0);
        if (!found.dptr || found.dsize != expected.dsize ||
            memcmp(found.dptr, expected.dptr, found.dsize))
            die("wrong value", key);
        free(found.dptr);
    }
    if (gdbm_close(db)) die("close", 0);
    puts("all there");
    return 0;
}
