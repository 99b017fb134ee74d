// SQLite: journal mode DELETE, no sync, N autocommitted inserts, then all of them selected.
// Prints microseconds. Usage: sqlite FILE N; FILE is made anew.
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static void check(sqlite3 *database, int result, int expected, const char *what) {
    if (result != expected) {
        fprintf(stderr, "%s: %s\n", what, database ? sqlite3_errmsg(database) : "no database");
        exit(1);
    }
}

// Checks what the journal mode has become: SQLite keeps its own when it cannot have another.
static int journal_mode(void *unused, int columns, char **values, char **names) {
    (void)unused, (void)columns, (void)names;
    return strcmp(values[0], "delete") != 0;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: %s FILE N\n", argv[0]);
        return 2;
    }
    int count = atoi(argv[2]);
    sqlite3 *database = NULL;
    sqlite3_stmt *statement = NULL;

    // Of a run before.
    unlink(argv[1]);
    check(database, sqlite3_open(argv[1], &database), SQLITE_OK, "open");
    check(database, sqlite3_exec(database, "PRAGMA journal_mode=DELETE", journal_mode, NULL, NULL),
          SQLITE_OK, "journal mode");
    check(database, sqlite3_exec(database,
                                 "PRAGMA synchronous=OFF;"
                                 "CREATE TABLE t (id integer, s text, f real)",
                                 NULL, NULL, NULL),
          SQLITE_OK, "create table");

    double begin = now();
    check(database,
          sqlite3_prepare_v2(database, "INSERT INTO t VALUES (?, ?, ?)", -1, &statement, NULL),
          SQLITE_OK, "prepare");
    for (int i = 0; i < count; i++) {
        char text[32];
        snprintf(text, sizeof text, "row number %d", i);
        sqlite3_bind_int(statement, 1, i);
        sqlite3_bind_text(statement, 2, text, -1, SQLITE_TRANSIENT);
        sqlite3_bind_double(statement, 3, i / 8.0);
        check(database, sqlite3_step(statement), SQLITE_DONE, "insert");
        sqlite3_reset(statement);
    }
    sqlite3_finalize(statement);
    double inserted = now();

    int rows = 0;
    check(database,
          sqlite3_prepare_v2(database, "SELECT id, s, f FROM t ORDER BY rowid", -1, &statement,
                             NULL),
          SQLITE_OK, "prepare");
    while (sqlite3_step(statement) == SQLITE_ROW) {
        char text[32];
        snprintf(text, sizeof text, "row number %d", rows);
        if (sqlite3_column_int(statement, 0) != rows ||
            strcmp((const char *)sqlite3_column_text(statement, 1), text) ||
            sqlite3_column_double(statement, 2) != rows / 8.0) {
            fprintf(stderr, "select: row %d is wrong\n", rows);
            return 1;
        }
        rows++;
    }
    check(database, sqlite3_finalize(statement), SQLITE_OK, "select");
    double selected = now();
    if (rows != count) {
        fprintf(stderr, "select: %d rows of %d\n", rows, count);
        return 1;
    }
    check(database, sqlite3_close(database), SQLITE_OK, "close");

    printf("insert %.1f\nselect %.1f\ntotal %.1f\n", inserted - begin, selected - inserted,
           selected - begin);
    return 0;
}
