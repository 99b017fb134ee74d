/* LMDB, whose database is a shared mapping and whose lock file is another: four processes put keys
 * at once, in transactions of their own, and one more reads all. Prints `lmdb`. */
#include <lmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROCESSES = 4, TRANSACTIONS = 20, KEYS = 10 };

static void must(int error, const char *what) {
    if (error) {
        printf("%s: %s\n", what, mdb_strerror(error));
        exit(1);
    }
}

static MDB_env *opened(void) {
    MDB_env *env;
    must(mdb_env_create(&env), "create");
    must(mdb_env_set_mapsize(env, 16 << 20), "size");
    must(mdb_env_open(env, "lmdb", MDB_NOSUBDIR | MDB_WRITEMAP, 0600), "open");
    return env;
}

static void put(int process) {
    MDB_env *env = opened();
    for (int n = 0; n < TRANSACTIONS; n++) {
        MDB_txn *txn;
        MDB_dbi all;
        must(mdb_txn_begin(env, NULL, 0, &txn), "begin");
        must(mdb_dbi_open(txn, NULL, MDB_INTEGERKEY, &all), "database");
        for (int at = 0; at < KEYS; at++) {
            unsigned number = (unsigned)((n * KEYS + at) * PROCESSES + process), twice = number * 2;
            MDB_val key = {sizeof number, &number}, value = {sizeof twice, &twice};
            must(mdb_put(txn, all, &key, &value, MDB_NOOVERWRITE), "put");
        }
        must(mdb_txn_commit(txn), "commit");
    }
    mdb_env_close(env);
}

int main(void) {
    for (int process = 0; process < PROCESSES; process++)
        if (fork() == 0) {
            put(process);
            return 0;
        }
    int status;
    while (wait(&status) > 0)
        if (status) return 1;
    MDB_env *env = opened();
    MDB_txn *txn;
    MDB_dbi all;
    MDB_cursor *cursor;
    MDB_val key, value;
    unsigned count = 0;
    must(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn), "begin");
    must(mdb_dbi_open(txn, NULL, MDB_INTEGERKEY, &all), "database");
    must(mdb_cursor_open(txn, all, &cursor), "cursor");
    while (mdb_cursor_get(cursor, &key, &value, MDB_NEXT) == 0) {
        if (*(unsigned *)key.mv_data != count || *(unsigned *)value.mv_data != count * 2) return 2;
        count++;
    }
    mdb_cursor_close(cursor);
    mdb_txn_abort(txn);
    mdb_env_close(env);
    if (count != PROCESSES * TRANSACTIONS * KEYS) return 3;
    puts("lmdb");
    return 0;
}
