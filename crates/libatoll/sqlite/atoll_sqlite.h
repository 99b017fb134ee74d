/* SQLite on a volume: a VFS named "atoll" over atoll.h. Compile atoll_sqlite.c into the program. */
#ifndef ATOLL_SQLITE_H
#define ATOLL_SQLITE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Registers the VFS "atoll", as the default one if make_default is not 0. Returns SQLITE_OK or an
 * error of SQLite's. The volume has to be mounted while databases are open, not yet now.
 *
 * A volume has one process, so that locks are held in memory, and so is the index of a write-ahead
 * log: every journal mode works, between connections of the process too. Synchronous settings mean
 * what they say: SQLite's syncs are fsync of the volume. */
int atoll_sqlite_register(int make_default);

#ifdef __cplusplus
}
#endif

#endif
