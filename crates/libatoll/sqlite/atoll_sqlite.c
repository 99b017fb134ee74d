/* SQLite on a volume: the VFS that atoll_sqlite.h declares. */
#define _GNU_SOURCE
#include "atoll_sqlite.h"

#include "atoll.h"

#include <errno.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

/* The state that connections of the process share about one database file. */
struct node {
    struct node *next;
    ino_t ino;
    int files;

    /* The index of the write-ahead log, in pieces of equal size, and its locks: how many files hold
     * one shared, or -1 if one file holds it alone. */
    char **regions;
    int region_count;
    int mapped;
    int wal_locks[SQLITE_SHM_NLOCK];
};

struct file {
    sqlite3_file base;
    int fd;
    int level;
    struct node *node;
    int mapped;
    /* The locks of the log's index that this file holds, one bit each. */
    unsigned wal_shared, wal_exclusive;
};

static struct node *nodes;

/* Nodes and their locks change under SQLite's own mutex for VFSes. */
static sqlite3_mutex *mutex(void) { return sqlite3_mutex_alloc(SQLITE_MUTEX_STATIC_VFS1); }

/* ---- content ---- */

static int file_read(sqlite3_file *base, void *buf, int n, sqlite3_int64 offset) {
    struct file *file = (struct file *)base;
    ssize_t got = atoll_pread(file->fd, buf, n, offset);
    if (got == n) return SQLITE_OK;
    if (got < 0) return SQLITE_IOERR_READ;
    /* SQLite asks for the rest to be zeros. */
    memset((char *)buf + got, 0, n - got);
    return SQLITE_IOERR_SHORT_READ;
}

static int file_write(sqlite3_file *base, const void *data, int n, sqlite3_int64 offset) {
    struct file *file = (struct file *)base;
    const char *at = data;
    while (n > 0) {
        ssize_t written = atoll_pwrite(file->fd, at, n, offset);
        if (written <= 0) return errno == ENOSPC ? SQLITE_FULL : SQLITE_IOERR_WRITE;
        at += written;
        offset += written;
        n -= written;
    }
    return SQLITE_OK;
}

static int file_truncate(sqlite3_file *base, sqlite3_int64 length) {
    struct file *file = (struct file *)base;
    return atoll_ftruncate(file->fd, length) == 0 ? SQLITE_OK : SQLITE_IOERR_TRUNCATE;
}

/* The volume's fsync makes names durable too: no directory has to be synced for a new journal. */
static int file_sync(sqlite3_file *base, int flags) {
    struct file *file = (struct file *)base;
    int failed = flags & SQLITE_SYNC_DATAONLY ? atoll_fdatasync(file->fd) : atoll_fsync(file->fd);
    return failed ? SQLITE_IOERR_FSYNC : SQLITE_OK;
}

static int file_size(sqlite3_file *base, sqlite3_int64 *size) {
    struct file *file = (struct file *)base;
    struct stat stat;
    if (atoll_fstat(file->fd, &stat) != 0) return SQLITE_IOERR_FSTAT;
    *size = stat.st_size;
    return SQLITE_OK;
}

/* ---- locks of the database ---- */

/* The bytes that every SQLite locks on Unix, so that programs under `atoll run` and on mounts see
 * these locks, and these programs theirs. They belong to the open file: connections of a process
 * exclude one another like those of several. */
enum { PENDING = 0x40000000, RESERVED = PENDING + 1, SHARED = PENDING + 2, SHARED_SIZE = 510 };

static int range_lock(struct file *file, int type, off_t start, off_t len) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
    if (atoll_fcntl(file->fd, F_OFD_SETLK, &lock) == 0) return SQLITE_OK;
    return errno == EAGAIN ? SQLITE_BUSY
                           : (type == F_UNLCK ? SQLITE_IOERR_UNLOCK : SQLITE_IOERR_LOCK);
}

static int file_lock(sqlite3_file *base, int level) {
    struct file *file = (struct file *)base;
    int result = SQLITE_OK;
    if (file->level >= level) return SQLITE_OK;
    if (level == SQLITE_LOCK_SHARED) {
        /* Pending keeps new readers out. */
        result = range_lock(file, F_RDLCK, PENDING, 1);
        if (result == SQLITE_OK) {
            result = range_lock(file, F_RDLCK, SHARED, SHARED_SIZE);
            int unlocked = range_lock(file, F_UNLCK, PENDING, 1);
            if (result == SQLITE_OK) result = unlocked;
        }
    } else if (level == SQLITE_LOCK_RESERVED) {
        result = range_lock(file, F_WRLCK, RESERVED, 1);
    } else {
        if (file->level < SQLITE_LOCK_PENDING) {
            result = range_lock(file, F_WRLCK, PENDING, 1);
            if (result != SQLITE_OK) return result;
            file->level = SQLITE_LOCK_PENDING;
        }
        /* With the last reader gone the lock is exclusive. */
        result = range_lock(file, F_WRLCK, SHARED, SHARED_SIZE);
    }
    if (result == SQLITE_OK) file->level = level;
    return result;
}

static int file_unlock(sqlite3_file *base, int level) {
    struct file *file = (struct file *)base;
    int result = SQLITE_OK;
    if (file->level <= level) return SQLITE_OK;
    if (level == SQLITE_LOCK_SHARED) {
        if (file->level == SQLITE_LOCK_EXCLUSIVE)
            result = range_lock(file, F_RDLCK, SHARED, SHARED_SIZE);
        int unlocked = range_lock(file, F_UNLCK, PENDING, 2);
        if (result == SQLITE_OK) result = unlocked;
    } else {
        result = range_lock(file, F_UNLCK, PENDING, 2 + SHARED_SIZE);
    }
    file->level = level;
    return result;
}

static int file_check_reserved_lock(sqlite3_file *base, int *result) {
    struct file *file = (struct file *)base;
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = RESERVED, .l_len = 1};
    *result = file->level >= SQLITE_LOCK_RESERVED;
    if (*result) return SQLITE_OK;
    if (atoll_fcntl(file->fd, F_OFD_GETLK, &lock) != 0) return SQLITE_IOERR_CHECKRESERVEDLOCK;
    *result = lock.l_type != F_UNLCK;
    return SQLITE_OK;
}

static int file_control(sqlite3_file *base, int operation, void *argument) {
    struct file *file = (struct file *)base;
    if (operation == SQLITE_FCNTL_LOCKSTATE) {
        *(int *)argument = file->level;
        return SQLITE_OK;
    }
    return SQLITE_NOTFOUND;
}

static int file_sector_size(sqlite3_file *base) {
    (void)base;
    return 4096;
}

static int file_characteristics(sqlite3_file *base) {
    (void)base;
    /* A write touches nothing beside its range, and a file that grows shows what was appended or
     * does not grow; an unlinked file stays while it is open. */
    return SQLITE_IOCAP_POWERSAFE_OVERWRITE | SQLITE_IOCAP_SAFE_APPEND |
           SQLITE_IOCAP_UNDELETABLE_WHEN_OPEN;
}

/* ---- the index of the write-ahead log ---- */

static int shm_map(sqlite3_file *base, int index, int size, int extend, void volatile **region) {
    struct file *file = (struct file *)base;
    struct node *node = file->node;
    int result = SQLITE_OK;
    *region = NULL;
    sqlite3_mutex_enter(mutex());
    if (!file->mapped) {
        file->mapped = 1;
        node->mapped++;
    }
    if (index >= node->region_count && extend) {
        char **regions = realloc(node->regions, (index + 1) * sizeof *regions);
        if (regions) node->regions = regions;
        while (regions && node->region_count <= index) {
            regions[node->region_count] = calloc(1, size);
/* The analyzer of gcc 12 does not see that `node` has it. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
            if (!regions[node->region_count]) break;
#pragma GCC diagnostic pop
            node->region_count++;
        }
        if (index >= node->region_count) result = SQLITE_NOMEM;
    }
    if (index < node->region_count) *region = node->regions[index];
    sqlite3_mutex_leave(mutex());
    return result;
}

static int shm_lock(sqlite3_file *base, int first, int n, int flags) {
    struct file *file = (struct file *)base;
    struct node *node = file->node;
    unsigned mask = ((1u << n) - 1) << first;
    int result = SQLITE_OK;
    sqlite3_mutex_enter(mutex());
    if (flags & SQLITE_SHM_UNLOCK) {
        for (int i = first; i < first + n; i++) {
            if (file->wal_exclusive & 1u << i) node->wal_locks[i] = 0;
            if (file->wal_shared & 1u << i) node->wal_locks[i]--;
        }
        file->wal_exclusive &= ~mask;
        file->wal_shared &= ~mask;
    } else if (flags & SQLITE_SHM_SHARED) {
        /* SQLite takes shared locks one at a time. */
        if (!(file->wal_shared & mask)) {
            if (node->wal_locks[first] < 0) {
                result = SQLITE_BUSY;
            } else {
                node->wal_locks[first]++;
                file->wal_shared |= mask;
            }
        }
    } else {
        for (int i = first; i < first + n; i++)
            if (node->wal_locks[i] != 0 && !(file->wal_exclusive & 1u << i)) result = SQLITE_BUSY;
        if (result == SQLITE_OK) {
            for (int i = first; i < first + n; i++) node->wal_locks[i] = -1;
            file->wal_exclusive |= mask;
        }
    }
    sqlite3_mutex_leave(mutex());
    return result;
}

static void shm_barrier(sqlite3_file *base) {
    (void)base;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    sqlite3_mutex_enter(mutex());
    sqlite3_mutex_leave(mutex());
}

static void free_regions(struct node *node) {
    for (int i = 0; i < node->region_count; i++) free(node->regions[i]);
    free(node->regions);
    node->regions = NULL;
    node->region_count = 0;
}

/* Without anyone to use it the index goes: the next connection builds it from the log. */
static int shm_unmap(sqlite3_file *base, int delete) {
    struct file *file = (struct file *)base;
    (void)delete;
    shm_lock(base, 0, SQLITE_SHM_NLOCK, SQLITE_SHM_UNLOCK | SQLITE_SHM_EXCLUSIVE);
    sqlite3_mutex_enter(mutex());
    if (file->mapped) {
        file->mapped = 0;
        if (--file->node->mapped == 0) free_regions(file->node);
    }
    sqlite3_mutex_leave(mutex());
    return SQLITE_OK;
}

/* ---- opening ---- */

/* The node of a file, which is one more that has it open; null without memory. */
static struct node *node_of(ino_t ino) {
    sqlite3_mutex_enter(mutex());
    struct node *node = nodes;
    while (node && node->ino != ino) node = node->next;
    if (!node && (node = calloc(1, sizeof *node))) {
        node->ino = ino;
        node->next = nodes;
        nodes = node;
    }
    if (node) node->files++;
    sqlite3_mutex_leave(mutex());
    return node;
}

static int file_close(sqlite3_file *base) {
    struct file *file = (struct file *)base;
    file_unlock(base, SQLITE_LOCK_NONE);
    shm_unmap(base, 0);
    sqlite3_mutex_enter(mutex());
    if (--file->node->files == 0) {
        struct node **place = &nodes;
        while (*place != file->node) place = &(*place)->next;
        *place = file->node->next;
        free(file->node);
    }
    sqlite3_mutex_leave(mutex());
    return atoll_close(file->fd) == 0 ? SQLITE_OK : SQLITE_IOERR_CLOSE;
}

/* The methods that every file has. */
#define FILE_METHODS                                                                        \
    .xClose = file_close, .xRead = file_read, .xWrite = file_write,                         \
    .xTruncate = file_truncate, .xSync = file_sync, .xFileSize = file_size,                 \
    .xLock = file_lock, .xUnlock = file_unlock,                                             \
    .xCheckReservedLock = file_check_reserved_lock, .xFileControl = file_control,           \
    .xSectorSize = file_sector_size, .xDeviceCharacteristics = file_characteristics

static const sqlite3_io_methods methods = {
    .iVersion = 2,
    FILE_METHODS,
    .xShmMap = shm_map,
    .xShmLock = shm_lock,
    .xShmBarrier = shm_barrier,
    .xShmUnmap = shm_unmap,
};

/* The index of the log is memory of this process, which others who use the volume do not see. */
static const sqlite3_io_methods served_methods = {.iVersion = 1, FILE_METHODS};

static int vfs_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *base, int flags, int *out) {
    struct file *file = (struct file *)base;
    (void)vfs;
    memset(file, 0, sizeof *file);
    int how = flags & SQLITE_OPEN_READWRITE ? O_RDWR : O_RDONLY;
    if (flags & SQLITE_OPEN_CREATE) how |= O_CREAT;
    if (flags & SQLITE_OPEN_EXCLUSIVE) how |= O_EXCL | O_NOFOLLOW;
    if (name) {
        file->fd = atoll_open(name, how | O_CLOEXEC, 0644);
        if (file->fd < 0 && errno != EISDIR && how & O_RDWR && !(flags & SQLITE_OPEN_EXCLUSIVE)) {
            /* A file that cannot be written may be read. */
            file->fd = atoll_open(name, O_RDONLY | O_CLOEXEC);
            flags = (flags & ~(SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE)) | SQLITE_OPEN_READONLY;
        }
    } else {
        file->fd = atoll_open("/", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    }
    if (file->fd < 0) return SQLITE_CANTOPEN;
    if (name && flags & SQLITE_OPEN_DELETEONCLOSE) atoll_unlink(name);
    struct stat stat;
    if (atoll_fstat(file->fd, &stat) != 0 || !(file->node = node_of(stat.st_ino))) {
        atoll_close(file->fd);
        return SQLITE_IOERR;
    }
    if (out) *out = flags;
    file->base.pMethods = atoll_is_served() == 1 ? &served_methods : &methods;
    return SQLITE_OK;
}

static int vfs_delete(sqlite3_vfs *vfs, const char *name, int sync) {
    (void)vfs;
    if (atoll_unlink(name) != 0)
        return errno == ENOENT ? SQLITE_IOERR_DELETE_NOENT : SQLITE_IOERR_DELETE;
    if (sync && atoll_sync() != 0) return SQLITE_IOERR_DIR_FSYNC;
    return SQLITE_OK;
}

static int vfs_access(sqlite3_vfs *vfs, const char *name, int flags, int *result) {
    (void)vfs;
    if (flags == SQLITE_ACCESS_EXISTS) {
        /* A journal that is empty has nothing to roll back: it is as good as none. */
        struct stat stat;
        *result = atoll_stat(name, &stat) == 0 && (!S_ISREG(stat.st_mode) || stat.st_size > 0);
    } else {
        *result = atoll_access(name, R_OK | (flags == SQLITE_ACCESS_READWRITE ? W_OK : 0)) == 0;
    }
    return SQLITE_OK;
}

static int vfs_full_pathname(sqlite3_vfs *vfs, const char *name, int size, char *out) {
    char cwd[4096] = "";
    (void)vfs;
    if (name[0] != '/' && !atoll_getcwd(cwd, sizeof cwd)) return SQLITE_CANTOPEN;
    const char *between = name[0] == '/' || !strcmp(cwd, "/") ? "" : "/";
    if (strlen(cwd) + strlen(between) + strlen(name) >= (size_t)size) return SQLITE_CANTOPEN;
    sqlite3_snprintf(size, out, "%s%s%s", cwd, between, name);
    return SQLITE_OK;
}

/* ---- what has nothing to do with files is the host's ---- */

static sqlite3_vfs *host(sqlite3_vfs *vfs) { return vfs->pAppData; }

static void *vfs_dl_open(sqlite3_vfs *vfs, const char *name) {
    return host(vfs)->xDlOpen(host(vfs), name);
}

static void vfs_dl_error(sqlite3_vfs *vfs, int size, char *out) {
    host(vfs)->xDlError(host(vfs), size, out);
}

static void (*vfs_dl_sym(sqlite3_vfs *vfs, void *library, const char *name))(void) {
    return host(vfs)->xDlSym(host(vfs), library, name);
}

static void vfs_dl_close(sqlite3_vfs *vfs, void *library) {
    host(vfs)->xDlClose(host(vfs), library);
}

static int vfs_randomness(sqlite3_vfs *vfs, int size, char *out) {
    return host(vfs)->xRandomness(host(vfs), size, out);
}

static int vfs_sleep(sqlite3_vfs *vfs, int microseconds) {
    return host(vfs)->xSleep(host(vfs), microseconds);
}

static int vfs_current_time(sqlite3_vfs *vfs, double *time) {
    return host(vfs)->xCurrentTime(host(vfs), time);
}

static int vfs_current_time_int64(sqlite3_vfs *vfs, sqlite3_int64 *time) {
    return host(vfs)->xCurrentTimeInt64(host(vfs), time);
}

static int vfs_last_error(sqlite3_vfs *vfs, int size, char *out) {
    (void)vfs;
    if (size > 0) sqlite3_snprintf(size, out, "%s", strerror(errno));
    return errno;
}

int atoll_sqlite_register(int make_default) {
    static sqlite3_vfs vfs = {
        .iVersion = 2,
        .szOsFile = sizeof(struct file),
        .mxPathname = 4096,
        .zName = "atoll",
        .xOpen = vfs_open,
        .xDelete = vfs_delete,
        .xAccess = vfs_access,
        .xFullPathname = vfs_full_pathname,
        .xDlOpen = vfs_dl_open,
        .xDlError = vfs_dl_error,
        .xDlSym = vfs_dl_sym,
        .xDlClose = vfs_dl_close,
        .xRandomness = vfs_randomness,
        .xSleep = vfs_sleep,
        .xCurrentTime = vfs_current_time,
        .xGetLastError = vfs_last_error,
        .xCurrentTimeInt64 = vfs_current_time_int64,
    };
    int result = sqlite3_initialize();
    if (result != SQLITE_OK) return result;
    /* Found by its name: the default may be this one already. */
    vfs.pAppData = sqlite3_vfs_find("unix");
    if (!vfs.pAppData) return SQLITE_ERROR;
    return sqlite3_vfs_register(&vfs, make_default);
}
