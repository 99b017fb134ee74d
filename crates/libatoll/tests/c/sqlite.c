/* SQLite on a volume through the VFS. Usage: sqlite VOLUME MODE JOURNAL, where MODE is mapped or
 * pread and JOURNAL a journal mode. */
#define _GNU_SOURCE
#include "../../sqlite/atoll_sqlite.h"
#include "atoll.h"
#include "check.h"

#include <pthread.h>
#include <sqlite3.h>
#include <sys/wait.h>

static const char *journal;

/* Runs SQL whose first column of the last row is kept in `answer`, of which each thread has its
 * own. */
static _Thread_local char answer[256];

static int keep(void *unused, int columns, char **values, char **names) {
    (void)unused, (void)columns, (void)names;
    snprintf(answer, sizeof answer, "%s", values[0] ? values[0] : "NULL");
    return 0;
}

static const char *run(sqlite3 *db, const char *sql) {
    char *error = NULL;
    answer[0] = 0;
    if (sqlite3_exec(db, sql, keep, NULL, &error) != SQLITE_OK) {
        fprintf(stderr, "%s: %s\n", sql, error);
        exit(1);
    }
    return answer;
}

static sqlite3 *open_database(void) {
    sqlite3 *db;
    char sql[64];
    CHECK(sqlite3_open("/data.db", &db) == SQLITE_OK);
    sqlite3_busy_timeout(db, 10000);
    snprintf(sql, sizeof sql, "PRAGMA journal_mode = %s", journal);
    CHECK(!strcmp(run(db, sql), journal));
    return db;
}

static void mount(const char *volume, const char *mode) {
    struct atoll_options options = ATOLL_OPTIONS;
    if (!strcmp(mode, "pread")) options.flags = ATOLL_PREAD;
    if (atoll_mount(volume, &options) != 0) {
        fprintf(stderr, "mount: %s\n", atoll_error());
        exit(1);
    }
}

enum { ROWS = 500, WRITERS = 3 };

static void *write_rows(void *argument) {
    (void)argument;
    sqlite3 *db = open_database();
    for (int i = 0; i < 50; i++) run(db, "INSERT INTO c VALUES (1)");
    CHECK(sqlite3_close(db) == SQLITE_OK);
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    const char *volume = argv[1], *mode = argv[2];
    journal = argv[3];
    struct atoll_options options = ATOLL_OPTIONS;
    options.volume_bytes = 64 << 20;
    CHECK(atoll_mkfs(volume, &options) == 0);
    CHECK(atoll_sqlite_register(1) == SQLITE_OK);

    /* A child that is killed in the middle of inserting: every row that it told of is there. */
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        mount(volume, mode);
        sqlite3 *db = open_database();
        run(db, "CREATE TABLE t (id INTEGER, s TEXT, f REAL)");
        for (int i = 0;; i++) {
            char sql[100];
            snprintf(sql, sizeof sql, "INSERT INTO t VALUES (%d, 'row %d', %d.5)", i, i, i);
            run(db, sql);
            if (write(pipes[1], &i, sizeof i) != sizeof i) _exit(1);
        }
    }
    int told = 0;
    while (told < ROWS) CHECK(read(pipes[0], &told, sizeof told) == sizeof told);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    close(pipes[1]);
    for (int more; read(pipes[0], &more, sizeof more) == sizeof more;) told = more;

    mount(volume, mode);
    sqlite3 *db = open_database();
    CHECK(!strcmp(run(db, "PRAGMA integrity_check"), "ok"));
    CHECK(atoi(run(db, "SELECT count(*) FROM t")) >= told + 1);
    CHECK(atoi(run(db, "SELECT count(*) FROM t WHERE s = 'row ' || id AND f = id + 0.5")) ==
          atoi(run(db, "SELECT count(*) FROM t")));
    run(db, "DELETE FROM t WHERE id >= 500");

    /* Changes that are rolled back are gone; those committed in one go are whole. */
    run(db, "BEGIN; DELETE FROM t; ROLLBACK");
    CHECK(atoi(run(db, "SELECT sum(id) FROM t")) == ROWS * (ROWS - 1) / 2);
    run(db, "BEGIN; CREATE TABLE b (k INTEGER PRIMARY KEY, v BLOB)");
    run(db, "INSERT INTO b SELECT id, zeroblob(5000) FROM t; CREATE INDEX i ON t (s); COMMIT");
    CHECK(atoi(run(db, "SELECT sum(length(v)) FROM b")) == ROWS * 5000);

    /* Two connections: a reader's view does not move; with a log, writers do not wait for it. */
    sqlite3 *other = open_database();
    run(other, "BEGIN");
    CHECK(atoi(run(other, "SELECT count(*) FROM b")) == ROWS);
    sqlite3_busy_timeout(db, 0);
    int result = sqlite3_exec(db, "DELETE FROM b WHERE k < 10", NULL, NULL, NULL);
    CHECK(result == (strcmp(journal, "wal") ? SQLITE_BUSY : SQLITE_OK));
    CHECK(atoi(run(other, "SELECT count(*) FROM b")) == ROWS);
    run(other, "COMMIT");
    sqlite3_busy_timeout(db, 10000);
    run(db, "DELETE FROM b WHERE k < 10");
    CHECK(atoi(run(other, "SELECT count(*) FROM b")) == ROWS - 10);

    /* Several threads, each with a connection. */
    run(db, "CREATE TABLE c (n INTEGER)");
    pthread_t writers[WRITERS];
    for (int i = 0; i < WRITERS; i++) CHECK(!pthread_create(&writers[i], NULL, write_rows, NULL));
    for (int i = 0; i < WRITERS; i++) CHECK(!pthread_join(writers[i], NULL));
    CHECK(atoi(run(db, "SELECT count(*) FROM c")) == 50 * WRITERS);

    /* Temporary files and a smaller database. */
    run(db, "PRAGMA temp_store = FILE; PRAGMA cache_size = 10");
    CHECK(atoi(run(db, "SELECT count(*) FROM (SELECT a.s FROM t a, t b ORDER BY b.s, a.s)")) ==
          ROWS * ROWS);
    run(db, "DROP TABLE b; VACUUM");
    CHECK(sqlite3_close(other) == SQLITE_OK);
    CHECK(!strcmp(run(db, "PRAGMA integrity_check"), "ok"));
    CHECK(sqlite3_close(db) == SQLITE_OK);
    CHECK(atoll_access("/data.db-journal", F_OK) != 0 && atoll_access("/data.db-wal", F_OK) != 0);
    CHECK(atoll_unmount() == 0);

    mount(volume, mode);
    db = open_database();
    CHECK(!strcmp(run(db, "PRAGMA integrity_check"), "ok"));
    CHECK(atoi(run(db, "SELECT sum(id) FROM t")) == ROWS * (ROWS - 1) / 2);
    CHECK(sqlite3_close(db) == SQLITE_OK && atoll_unmount() == 0);
    puts("kept");
    return 0;
}
