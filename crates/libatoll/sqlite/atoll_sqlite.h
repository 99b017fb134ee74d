/* SQLite on a volume: a VFS named "atoll" over atoll.h. Compile atoll_sqlite.c into the program. */
#ifndef ATOLL_SQLITE_H
#define ATOLL_SQLITE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Registers the VFS "atoll", as the default one if make_default is not 0. Returns SQLITE_OK or an
 * error of SQLite's. The volume has to be mounted while databases are open, not yet now.
 *
 * On a volume that a process has alone every journal mode works, between its connections too. On
 * one that a server serves databases can be shared with other processes, also with SQLite on mounts
 * and under `atoll run`: the locks are those that SQLite takes on Unix. Journal mode wal is not to
 * be had there, as on network file systems, since the index of the log would be shared memory:
 * `PRAGMA journal_mode` answers with another mode, and a database that is in this mode cannot be
 * opened, except with `PRAGMA locking_mode=exclusive`.
 *
 * Synchronous settings mean what they say: SQLite's syncs are fsync of the volume. */
int atoll_sqlite_register(int make_default);

#ifdef __cplusplus
}
#endif

#endif
