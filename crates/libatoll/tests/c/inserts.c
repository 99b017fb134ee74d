/* SQLite in several processes on a volume that a server serves. Usage: inserts SOCKET JOURNAL; the
 * processes insert rows, then the database is checked. */
#include "atoll.h"
#include "atoll_sqlite.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { PROCESSES = 2, ROWS = 60 };

static sqlite3 *db;

static void does(const char *text, const char *expected) {
    sqlite3_stmt *statement = NULL;
    int result = sqlite3_prepare_v2(db, text, -1, &statement, NULL);
    if (result == SQLITE_OK) result = sqlite3_step(statement);
    const char *got = result == SQLITE_ROW ? (const char *)sqlite3_column_text(statement, 0) : "";
    if ((result != SQLITE_ROW && result != SQLITE_DONE) || (expected && strcmp(got, expected))) {
        fprintf(stderr, "%s: %s, %s\n", text, sqlite3_errmsg(db), got);
        exit(1);
    }
    sqlite3_finalize(statement);
}

static void begin(const char *place, const char *journal) {
    struct atoll_options options = ATOLL_OPTIONS;
    if (atoll_mount(place, &options) != 0) fprintf(stderr, "%s\n", atoll_error()), exit(1);
    atoll_sqlite_register(1);
    if (sqlite3_open("/t.db", &db) != SQLITE_OK) exit(1);
    sqlite3_busy_timeout(db, 300000);
    char pragma[64];
    snprintf(pragma, sizeof pragma, "pragma journal_mode=%s", journal);
    /* The index of a write-ahead log cannot be shared. */
    does(pragma, strcmp(journal, "wal") ? journal : "delete");
}

static int end(void) { return sqlite3_close(db) != SQLITE_OK || atoll_unmount() != 0; }

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    for (int i = 0; i < PROCESSES; i++) {
        pid_t child = fork();
        if (child < 0) return 1;
        if (child > 0) continue;
        begin(argv[1], argv[2]);
        does("create table if not exists t(a integer primary key, x blob)", NULL);
        for (int row = 0; row < ROWS; row++)
            does("insert into t(x) values(randomblob(3000))", NULL);
        return end();
    }
    int status, failed = 0;
    for (int i = 0; i < PROCESSES; i++) wait(&status), failed |= status;
    begin(argv[1], argv[2]);
    char rows[16];
    snprintf(rows, sizeof rows, "%d", PROCESSES * ROWS);
    does("select count(*) from t", rows);
    does("pragma integrity_check", "ok");
    if (failed || end()) return 1;
    printf("whole\n");
    return 0;
}
