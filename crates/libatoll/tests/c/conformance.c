/* The calls from C: results, errno, structures, threads and fork. Usage: conformance VOLUME MODE,
 * where MODE is mapped, pread or ram. */
#define _GNU_SOURCE
#include "atoll.h"
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static void descriptors(void) {
    char buf[32];
    int fd = atoll_open("/file", O_CREAT | O_RDWR | O_EXCL, 0640);
    CHECK(fd == 3);
    FAILS(atoll_open("/file", O_CREAT | O_EXCL | O_RDWR, 0640), EEXIST);
    FAILS(atoll_open("/none", O_RDONLY), ENOENT);
    FAILS(atoll_open(NULL, O_RDONLY), EFAULT);
    CHECK(atoll_write(fd, "0123456789", 10) == 10);
    CHECK(atoll_lseek(fd, 0, SEEK_CUR) == 10);
    CHECK(atoll_lseek(fd, 2, SEEK_SET) == 2);
    CHECK(atoll_read(fd, buf, sizeof buf) == 8 && !memcmp(buf, "23456789", 8));
    CHECK(atoll_read(fd, buf, sizeof buf) == 0);
    CHECK(atoll_pread(fd, buf, 3, 4) == 3 && !memcmp(buf, "456", 3));
    CHECK(atoll_pwrite(fd, "XY", 2, 12) == 2);
    CHECK(atoll_pread(fd, buf, 4, 10) == 4 && !memcmp(buf, "\0\0XY", 4));
    CHECK(atoll_pread(fd, NULL, 0, 0) == 0);
    FAILS(atoll_pread(fd, NULL, 1, 0), EFAULT);
    FAILS(atoll_pread(fd, buf, 1, -1), EINVAL);
    FAILS(atoll_read(fd, buf, SIZE_MAX), EINVAL);
    FAILS(atoll_lseek(fd, -1, SEEK_SET), EINVAL);
    FAILS(atoll_lseek(fd, 0, 99), EINVAL);
    FAILS(atoll_write(1, "x", 1), EBADF);
    FAILS(atoll_close(-1), EBADF);
    struct iovec out[2] = {{"ab", 2}, {"cde", 3}};
    CHECK(atoll_pwritev(fd, out, 2, 0) == 5);
    CHECK(atoll_writev(fd, out, 2) == 5);
    char one[2], two[8];
    struct iovec in[2] = {{one, 2}, {two, 8}};
    CHECK(atoll_preadv(fd, in, 2, 0) == 10 && !memcmp(two, "cde567", 6));
    CHECK(atoll_lseek(fd, 0, SEEK_SET) == 0);
    CHECK(atoll_readv(fd, in, 1) == 2 && !memcmp(one, "ab", 2));
    FAILS(atoll_readv(fd, in, -1), EINVAL);
    FAILS(atoll_readv(fd, in, 1025), EINVAL);
    CHECK(atoll_readv(fd, NULL, 0) == 0);

    int other = atoll_dup(fd);
    CHECK(other == 4 && atoll_lseek(other, 0, SEEK_CUR) == 2);
    CHECK(atoll_dup2(fd, 9) == 9 && atoll_dup3(fd, 8, O_CLOEXEC) == 8);
    FAILS(atoll_dup3(fd, fd, 0), EINVAL);
    CHECK(atoll_fcntl(8, F_GETFD) == FD_CLOEXEC && atoll_fcntl(9, F_GETFD) == 0);
    CHECK(atoll_fcntl(9, F_SETFD, FD_CLOEXEC) == 0 && atoll_fcntl(9, F_GETFD) == FD_CLOEXEC);
    CHECK((atoll_fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR);
    CHECK(atoll_fcntl(fd, F_DUPFD, 7) == 7 && atoll_fcntl(fd, F_DUPFD_CLOEXEC, 7) == 10);
    CHECK(atoll_fcntl(fd, F_SETFL, O_APPEND) == 0);
    CHECK(atoll_fcntl(other, F_GETFL) == (O_RDWR | O_APPEND));
    CHECK(atoll_write(fd, "end", 3) == 3 && atoll_lseek(fd, 0, SEEK_CUR) == 18);
    CHECK(atoll_fcntl(fd, F_SETFL, 0) == 0);
    FAILS(atoll_fcntl(fd, 12345), EINVAL);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    CHECK(atoll_fcntl(fd, F_SETLK, &lock) == 0 && atoll_fcntl(fd, F_GETLK, &lock) == 0);
    CHECK(lock.l_type == F_UNLCK);
    int separate = atoll_open("/file", O_RDONLY);
    CHECK(atoll_flock(fd, LOCK_EX) == 0);
    FAILS(atoll_flock(separate, LOCK_SH | LOCK_NB), EWOULDBLOCK);
    CHECK(atoll_flock(other, LOCK_UN) == 0 && atoll_flock(separate, LOCK_SH | LOCK_NB) == 0);
    FAILS(atoll_flock(fd, 77), EINVAL);
    struct flock of_file = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 4, .l_len = 2};
    int second = atoll_open("/file", O_RDWR);
    CHECK(atoll_fcntl(fd, F_SETLK, &(struct flock){.l_type = F_UNLCK}) == 0);
    CHECK(atoll_fcntl(second, F_OFD_SETLK, &of_file) == 0);
    FAILS(atoll_fcntl(fd, F_SETLK, &(struct flock){.l_type = F_WRLCK}), EAGAIN);
    lock = (struct flock){.l_type = F_RDLCK, .l_whence = SEEK_END, .l_start = -1, .l_len = -9999};
    FAILS(atoll_fcntl(fd, F_GETLK, &lock), EINVAL);
    lock = (struct flock){.l_type = F_RDLCK, .l_whence = SEEK_SET};
    CHECK(atoll_fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type == F_WRLCK && lock.l_pid == -1);
    CHECK(lock.l_start == 4 && lock.l_len == 2);
    CHECK(atoll_close(second) == 0);
    CHECK(atoll_fcntl(fd, F_SETLKW, &(struct flock){.l_type = F_WRLCK}) == 0);
    FAILS(atoll_fcntl(fd, F_SETLK, (struct flock *)NULL), EFAULT);
    FAILS(atoll_fcntl(fd, F_SETLK, &(struct flock){.l_type = 99}), EINVAL);
    CHECK(atoll_is_served() == 0);
    for (int i = 4; i < 11; i++) atoll_close(i);

    CHECK(atoll_ftruncate(fd, 1 << 20) == 0);
    CHECK(atoll_lseek(fd, 0, SEEK_END) == 1 << 20);
    CHECK(atoll_lseek(fd, 0, SEEK_DATA) == 0);
    off_t hole = atoll_lseek(fd, 0, SEEK_HOLE);
    CHECK(hole >= 18 && hole < 1 << 20);
    FAILS(atoll_lseek(fd, 1 << 20, SEEK_DATA), ENXIO);
    CHECK(atoll_fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 8) == 0);
    CHECK(atoll_pread(fd, buf, 9, 0) == 9 && !memcmp(buf, "\0\0\0\0\0\0\0\0", 8) && buf[8]);
    FAILS(atoll_fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, 4096), EOPNOTSUPP);
    off_t from_at = 8, to_at = 2;
    CHECK(atoll_copy_file_range(fd, &from_at, fd, &to_at, 3, 0) == 3);
    CHECK(from_at == 11 && to_at == 5);
    CHECK(atoll_pread(fd, buf, 11, 0) == 11 && !memcmp(buf + 2, buf + 8, 3) && buf[2]);
    FAILS(atoll_copy_file_range(fd, &from_at, fd, &to_at, 3, 1), EINVAL);
    FAILS(atoll_copy_file_range(fd, &from_at, fd, &to_at, 100, 0), EINVAL);
    errno = 0;
    CHECK(atoll_posix_fallocate(fd, 0, 1 << 21) == 0);
    CHECK(atoll_posix_fallocate(fd, 0, 0) == EINVAL && errno == 0);
    CHECK(atoll_truncate("/file", 5) == 0 && atoll_lseek(fd, 0, SEEK_END) == 5);
    FAILS(atoll_truncate("/file", -5), EINVAL);
    CHECK(atoll_fsync(fd) == 0 && atoll_fdatasync(fd) == 0 && atoll_syncfs(fd) == 0);
    CHECK(atoll_sync() == 0);
    CHECK(atoll_close(fd) == 0);
    FAILS(atoll_close(fd), EBADF);
    FAILS(atoll_fstat(fd, &(struct stat){0}), EBADF);

    fd = atoll_creat("/created", 0600);
    CHECK(fd == 3 && atoll_write(fd, "x", 1) == 1);
    FAILS(atoll_read(fd, buf, 1), EBADF);
    CHECK(atoll_unlink("/created") == 0 && atoll_pwrite(fd, "later", 5, 0) == 5);
    struct stat stat;
    CHECK(atoll_fstat(fd, &stat) == 0 && stat.st_nlink == 0 && stat.st_size == 5);
    CHECK(atoll_close(fd) == 0);
    fd = atoll_open("/", O_TMPFILE | O_RDWR, 0600);
    CHECK(fd == 3 && atoll_write(fd, "tmp", 3) == 3);
    CHECK(atoll_linkat(fd, "", AT_FDCWD, "/linked", AT_EMPTY_PATH) == 0);
    CHECK(atoll_close(fd) == 0 && atoll_stat("/linked", &stat) == 0 && stat.st_size == 3);
    CHECK(atoll_unlink("/linked") == 0 && atoll_unlink("/file") == 0);
}

static void names(void) {
    char buf[64];
    struct stat a, b;
    CHECK(atoll_mkdir("/d", 0755) == 0);
    FAILS(atoll_mkdir("/d", 0755), EEXIST);
    int dir = atoll_open("/d", O_RDONLY | O_DIRECTORY);
    CHECK(atoll_mkdirat(dir, "sub", 0700) == 0);
    int fd = atoll_openat(dir, "f", O_CREAT | O_WRONLY, 0666);
    CHECK(fd >= 0 && atoll_write(fd, "abc", 3) == 3 && atoll_close(fd) == 0);
    CHECK(atoll_link("/d/f", "/d/hard") == 0);
    CHECK(atoll_linkat(dir, "f", dir, "hard2", 0) == 0);
    CHECK(atoll_stat("/d/f", &a) == 0 && atoll_fstatat(dir, "hard", &b, 0) == 0);
    CHECK(a.st_ino == b.st_ino && a.st_nlink == 3);
    CHECK(atoll_symlink("d/f", "/l") == 0 && atoll_symlinkat("f", dir, "l") == 0);
    CHECK(atoll_stat("/l", &b) == 0 && a.st_ino == b.st_ino);
    CHECK(atoll_lstat("/d/l", &b) == 0 && S_ISLNK(b.st_mode) && b.st_size == 1);
    CHECK(atoll_readlink("/l", buf, sizeof buf) == 3 && !memcmp(buf, "d/f", 3));
    CHECK(atoll_readlinkat(dir, "l", buf, sizeof buf) == 1);
    FAILS(atoll_readlink("/d/f", buf, sizeof buf), EINVAL);
    FAILS(atoll_readlink("", buf, sizeof buf), ENOENT);
    CHECK(atoll_mknod("/pipe", S_IFIFO | 0600, 0) == 0);
    CHECK(atoll_lstat("/pipe", &b) == 0 && S_ISFIFO(b.st_mode));
    CHECK(atoll_mknodat(dir, "plain", S_IFREG | 0600, 0) == 0);
    CHECK(atoll_rename("/d/plain", "/plain") == 0);
    CHECK(atoll_renameat(AT_FDCWD, "/plain", dir, "plain") == 0);
    FAILS(atoll_renameat2(dir, "plain", dir, "f", RENAME_NOREPLACE), EEXIST);
    CHECK(atoll_renameat2(dir, "plain", dir, "f", RENAME_EXCHANGE) == 0);
    CHECK(atoll_stat("/d/f", &b) == 0 && b.st_size == 0);
    FAILS(atoll_renameat2(dir, "plain", dir, "f", RENAME_EXCHANGE | RENAME_WHITEOUT), EINVAL);
    FAILS(atoll_renameat2(dir, "plain", dir, "f", 8), EINVAL);
    CHECK(atoll_renameat2(dir, "plain", dir, "moved", RENAME_WHITEOUT) == 0);
    CHECK(atoll_lstat("/d/plain", &b) == 0 && S_ISCHR(b.st_mode) && b.st_rdev == 0);
    CHECK(atoll_rename("/d/moved", "/d/plain") == 0);
    FAILS(atoll_rename("/d", "/d/sub/d"), EINVAL);
    FAILS(atoll_rmdir("/d"), ENOTEMPTY);
    FAILS(atoll_rmdir("/d/f"), ENOTDIR);
    FAILS(atoll_unlink("/d"), EISDIR);
    FAILS(atoll_unlinkat(dir, "f", 1), EINVAL);
    FAILS(atoll_open("/d/f/x", O_RDONLY), ENOTDIR);
    CHECK(atoll_symlink("loop", "/loop") == 0);
    FAILS(atoll_open("/loop", O_RDONLY), ELOOP);
    char *longest = malloc(5000);
    memset(longest, 'n', 5000);
    longest[256] = 0;
    FAILS(atoll_open(longest, O_RDONLY), ENAMETOOLONG);
    longest[255] = 0;
    FAILS(atoll_open(longest, O_RDONLY), ENOENT);
    memset(longest, '/', 4999);
    longest[4999] = 0;
    FAILS(atoll_open(longest, O_RDONLY), ENAMETOOLONG);
    free(longest);

    CHECK(atoll_chdir("/d") == 0 && atoll_getcwd(buf, sizeof buf) == buf);
    CHECK(!strcmp(buf, "/d"));
    FAILS((long)atoll_getcwd(buf, 2) - 1, ERANGE);
    FAILS((long)atoll_getcwd(buf, 0) - 1, EINVAL);
    char *allocated = atoll_getcwd(NULL, 0);
    CHECK(allocated && !strcmp(allocated, "/d"));
    free(allocated);
    CHECK(atoll_access("f", F_OK) == 0 && atoll_access("sub", X_OK) == 0);
    FAILS(atoll_access("f", X_OK), EACCES);
    FAILS(atoll_access("f", 8), EINVAL);
    FAILS(atoll_faccessat(dir, "none", F_OK, 0), ENOENT);
    int root = atoll_open("/", O_RDONLY);
    CHECK(atoll_fchdir(root) == 0 && atoll_getcwd(buf, sizeof buf) && !strcmp(buf, "/"));
    FAILS(atoll_chdir("/d/f"), ENOTDIR);
    CHECK(atoll_close(root) == 0);
    CHECK(atoll_remove("/d/sub") == 0 && atoll_remove("/pipe") == 0);
    FAILS(atoll_remove("/d"), ENOTEMPTY);
    CHECK(atoll_unlinkat(dir, "l", 0) == 0);
    const char *rest[] = {"f", "hard", "hard2", "plain"};
    for (int i = 0; i < 4; i++) CHECK(atoll_unlinkat(dir, rest[i], 0) == 0);
    CHECK(atoll_close(dir) == 0 && atoll_unlinkat(AT_FDCWD, "/d", AT_REMOVEDIR) == 0);
    CHECK(atoll_unlink("/l") == 0 && atoll_unlink("/loop") == 0);
}

static void attributes(void) {
    struct stat stat;
    int fd = atoll_open("/a", O_CREAT | O_RDWR, 0666);
    CHECK(atoll_fstat(fd, &stat) == 0);
    CHECK(stat.st_mode == (S_IFREG | 0644) && stat.st_nlink == 1 && stat.st_size == 0);
    CHECK(stat.st_blksize == 4096 && stat.st_uid == 0 && stat.st_mtim.tv_sec > 1700000000);
    CHECK(atoll_pwrite(fd, "x", 1, 8191) == 1);
    CHECK(atoll_fstat(fd, &stat) == 0 && stat.st_size == 8192 && stat.st_blocks > 0);
    CHECK(atoll_fchmod(fd, 0600) == 0 && atoll_chmod("/a", 04755) == 0);
    CHECK(atoll_chown("/a", 12, 34) == 0 && atoll_stat("/a", &stat) == 0);
    CHECK(stat.st_mode == (S_IFREG | 0755) && stat.st_uid == 12 && stat.st_gid == 34);
    CHECK(atoll_fchown(fd, -1, 35) == 0 && atoll_fstat(fd, &stat) == 0);
    CHECK(stat.st_uid == 12 && stat.st_gid == 35);
    CHECK(atoll_symlink("a", "/s") == 0 && atoll_lchown("/s", 1, 2) == 0);
    CHECK(atoll_fchownat(AT_FDCWD, "/a", 5, 6, 0) == 0);
    CHECK(atoll_lstat("/s", &stat) == 0 && stat.st_uid == 1 && stat.st_gid == 2);
    FAILS(atoll_fchmodat(AT_FDCWD, "/s", 0600, AT_SYMLINK_NOFOLLOW), EOPNOTSUPP);
    FAILS(atoll_fchmodat(AT_FDCWD, "/s", 0600, 0x4000000), EINVAL);
    struct timespec times[2] = {{1, 2}, {0, UTIME_OMIT}};
    struct stat before;
    CHECK(atoll_fstat(fd, &before) == 0 && atoll_futimens(fd, times) == 0);
    CHECK(atoll_fstat(fd, &stat) == 0 && stat.st_atim.tv_sec == 1 && stat.st_atim.tv_nsec == 2);
    CHECK(stat.st_mtim.tv_sec == before.st_mtim.tv_sec);
    times[1] = (struct timespec){3, 999999999};
    CHECK(atoll_utimensat(AT_FDCWD, "/s", times, 0) == 0 && atoll_stat("/a", &stat) == 0);
    CHECK(stat.st_mtim.tv_sec == 3 && stat.st_mtim.tv_nsec == 999999999);
    CHECK(atoll_utimensat(fd, NULL, NULL, 0) == 0 && atoll_stat("/a", &stat) == 0);
    CHECK(stat.st_mtim.tv_sec > 1700000000);
    times[0].tv_nsec = 1000000000;
    FAILS(atoll_futimens(fd, times), EINVAL);
    struct timeval micros[2] = {{7, 8}, {9, 10}};
    CHECK(atoll_utimes("/a", micros) == 0 && atoll_stat("/a", &stat) == 0);
    CHECK(stat.st_mtim.tv_sec == 9 && stat.st_mtim.tv_nsec == 10000);
    CHECK(atoll_umask(077) == 022 && atoll_umask(022) == 077);

    struct statvfs volume;
    CHECK(atoll_statvfs("/", &volume) == 0 && volume.f_bsize == 4096);
    CHECK(volume.f_blocks > volume.f_bfree && volume.f_bfree > 0 && volume.f_namemax == 255);
    CHECK(atoll_fstatvfs(fd, &volume) == 0);
    FAILS(atoll_statvfs("/none", &volume), ENOENT);
    FAILS(atoll_statvfs("/", NULL), EFAULT);

    char buf[16];
    CHECK(atoll_setxattr("/s", "user.k", "value", 5, 0) == 0);
    CHECK(atoll_getxattr("/a", "user.k", buf, sizeof buf) == 5 && !memcmp(buf, "value", 5));
    CHECK(atoll_fgetxattr(fd, "user.k", NULL, 0) == 5);
    FAILS(atoll_getxattr("/a", "user.k", buf, 4), ERANGE);
    FAILS(atoll_fsetxattr(fd, "user.k", "", 0, 1), EEXIST);
    FAILS(atoll_lsetxattr("/s", "user.k", "", 0, 0), EPERM);
    FAILS(atoll_lgetxattr("/s", "user.k", buf, 4), ENODATA);
    FAILS(atoll_setxattr("/a", "nonsense", "", 0, 0), EOPNOTSUPP);
    CHECK(atoll_listxattr("/a", buf, sizeof buf) == 7 && !memcmp(buf, "user.k", 7));
    CHECK(atoll_flistxattr(fd, NULL, 0) == 7 && atoll_llistxattr("/s", buf, sizeof buf) == 0);
    CHECK(atoll_fsetxattr(fd, "user.z", "", 0, 0) == 0);
    CHECK(atoll_fremovexattr(fd, "user.z") == 0 && atoll_removexattr("/a", "user.k") == 0);
    FAILS(atoll_lremovexattr("/a", "user.k"), ENODATA);
    CHECK(atoll_close(fd) == 0 && atoll_unlink("/a") == 0 && atoll_unlink("/s") == 0);
}

static void directories(void) {
    enum { COUNT = 3000 };
    static char seen[COUNT];
    char name[32];
    CHECK(atoll_mkdir("/list", 0755) == 0);
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "/list/entry-%d", i);
        int fd = atoll_creat(name, 0600);
        CHECK(fd >= 0 && atoll_close(fd) == 0);
    }
    ATOLL_DIR *dir = atoll_opendir("/list");
    CHECK(dir && atoll_dirfd(dir) == 3);
    struct dirent *entry;
    int count = 0, dots = 0;
    long middle = 0;
    char at_middle[32];
    errno = 0;
    while ((entry = atoll_readdir(dir))) {
        if (middle && !at_middle[0]) strcpy(at_middle, entry->d_name);
        if (entry->d_name[0] == '.') {
            CHECK(entry->d_type == DT_DIR);
            dots++;
            continue;
        }
        int i = atoi(entry->d_name + 6);
        CHECK(entry->d_type == DT_REG && entry->d_ino > 0 && !seen[i]);
        seen[i] = 1;
        if (++count == COUNT / 2) {
            middle = atoll_telldir(dir);
            at_middle[0] = 0;
        }
    }
    CHECK(errno == 0 && count == COUNT && dots == 2);
    atoll_seekdir(dir, middle);
    CHECK((entry = atoll_readdir(dir)) && !strcmp(entry->d_name, at_middle));
    atoll_rewinddir(dir);
    for (count = 0; atoll_readdir(dir); count++) continue;
    CHECK(count == COUNT + 2 && atoll_closedir(dir) == 0);
    FAILS((long)atoll_opendir("/none") - 1, ENOENT);
    int fd = atoll_creat("/plain", 0600);
    FAILS((long)atoll_opendir("/plain") - 1, ENOTDIR);
    FAILS((long)atoll_fdopendir(fd) - 1, ENOTDIR);
    CHECK(atoll_close(fd) == 0 && atoll_unlink("/plain") == 0);
    fd = atoll_open("/list", O_RDONLY | O_DIRECTORY);
    char buf[4096];
    ssize_t n;
    for (count = 0; (n = atoll_getdents64(fd, buf, sizeof buf)) > 0;)
        for (ssize_t at = 0; at < n; at += ((struct dirent64 *)(buf + at))->d_reclen) count++;
    CHECK(n == 0 && count == COUNT + 2);
    dir = atoll_fdopendir(fd);
    CHECK(dir && !atoll_readdir(dir) && atoll_closedir(dir) == 0);
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "/list/entry-%d", i);
        CHECK(atoll_unlink(name) == 0);
    }
    CHECK(atoll_rmdir("/list") == 0);
}

enum { THREADS = 4, ROUNDS = 2000 };

/* Each thread appends numbered lines to one file and uses files of its own. */
static void *work(void *argument) {
    long me = (long)argument;
    char name[32], line[16], back[16];
    snprintf(name, sizeof name, "/thread-%ld", me);
    int shared = atoll_open("/shared", O_WRONLY | O_APPEND | O_CREAT, 0600);
    CHECK(shared >= 0);
    for (int i = 0; i < ROUNDS; i++) {
        int fd = atoll_open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
        CHECK(fd >= 0);
        snprintf(line, sizeof line, "%ld %8d\n", me, i);
        CHECK(atoll_write(fd, line, 11) == 11 && atoll_pread(fd, back, 11, 0) == 11);
        CHECK(!memcmp(line, back, 11) && atoll_close(fd) == 0);
        CHECK(atoll_write(shared, line, 11) == 11);
        /* errno belongs to the thread. */
        FAILS(atoll_open("/none", O_RDONLY), ENOENT);
    }
    CHECK(atoll_close(shared) == 0 && atoll_unlink(name) == 0);
    return NULL;
}

static void threads(void) {
    pthread_t thread[THREADS];
    for (long i = 0; i < THREADS; i++) CHECK(!pthread_create(&thread[i], NULL, work, (void *)i));
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_join(thread[i], NULL));
    int fd = atoll_open("/shared", O_RDONLY), next[THREADS] = {0};
    char line[12] = {0};
    while (atoll_read(fd, line, 11) == 11) {
        int me = line[0] - '0';
        CHECK(me >= 0 && me < THREADS && atoi(line + 2) == next[me]++);
    }
    for (int i = 0; i < THREADS; i++) CHECK(next[i] == ROUNDS);
    CHECK(atoll_close(fd) == 0 && atoll_unlink("/shared") == 0);
}

/* The child finds no volume, and whatever it does leaves the parent's as it is. */
static void forked(void) {
    int fd = atoll_open("/kept", O_CREAT | O_RDWR, 0600);
    CHECK(atoll_write(fd, "parent", 6) == 6);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        FAILS(atoll_write(fd, "child", 5), EBADF);
        FAILS(atoll_close(fd), EBADF);
        FAILS(atoll_lseek(fd, 0, SEEK_SET), EBADF);
        FAILS(atoll_unlink("/kept"), ENODEV);
        FAILS(atoll_unmount(), ENODEV);
        struct atoll_options options = ATOLL_OPTIONS;
        options.flags = ATOLL_RAM;
        options.volume_bytes = 16 << 20;
        CHECK(atoll_mount(NULL, &options) == 0);
        CHECK(atoll_open("/own", O_CREAT | O_RDWR, 0600) == 3 && atoll_unmount() == 0);
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    char buf[8];
    CHECK(atoll_lseek(fd, 0, SEEK_CUR) == 6 && atoll_pread(fd, buf, 8, 0) == 6);
    FAILS(atoll_open("/own", O_RDONLY), ENOENT);
    CHECK(atoll_close(fd) == 0);
}

static int handler_errno;

static void handler(int signal) {
    (void)signal;
    errno = 0;
    if (atoll_lseek(3, 0, SEEK_SET) == -1) handler_errno = errno;
}

static int ended[2];

static void *idle(void *argument) {
    char byte;
    CHECK(read(ended[0], &byte, 1) == 0);
    return argument;
}

/* The handler runs inside a call: it is refused instead of hanging, also beside other threads. */
static void interrupted(int threads) {
    pthread_t thread;
    handler_errno = 0;
    if (threads > 1) {
        sigset_t alarm, before;
        sigemptyset(&alarm), sigaddset(&alarm, SIGALRM);
        CHECK(pipe(ended) == 0 && !pthread_sigmask(SIG_BLOCK, &alarm, &before));
        CHECK(!pthread_create(&thread, NULL, idle, NULL));
        CHECK(!pthread_sigmask(SIG_SETMASK, &before, NULL));
    }
    int fd = atoll_open("/kept", O_RDWR);
    struct sigaction action = {.sa_handler = handler};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval often = {{0, 50}, {0, 50}}, never = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    char *big = malloc(1 << 20);
    for (int i = 0; i < 2000 && !handler_errno; i++) {
        /* A handler's lseek on the same descriptor cannot change where pwrite goes. */
        CHECK(atoll_pwrite(fd, big, 1 << 20, 0) == 1 << 20);
    }
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    CHECK(handler_errno == EDEADLK);
    free(big);
    if (threads > 1) CHECK(close(ended[1]) == 0 && !pthread_join(thread, NULL));
    CHECK(atoll_close(fd) == 0);
}

/* A child keeps nothing from who unmounts. A stream of one mount means nothing to the next. */
static void again(const char *volume, const struct atoll_options *options) {
    CHECK(atoll_mount(volume, options) == 0);
    ATOLL_DIR *before = atoll_opendir("/");
    CHECK(before && atoll_readdir(before));
    pid_t parent = getpid(), child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        end_with(parent);
        for (;;) pause();
    }
    CHECK(atoll_unmount() == 0 && atoll_mount(volume, options) == 0);
    int fd = atoll_open("/again", O_CREAT | O_RDWR, 0600);
    CHECK(fd == atoll_dirfd(before));
    FAILS(atoll_closedir(before), EBADF);
    CHECK(atoll_write(fd, "x", 1) == 1 && atoll_unlink("/again") == 0);
    CHECK(kill(child, SIGKILL) == 0 && atoll_unmount() == 0);
}

static _Atomic long waits_as;
static int second;

static void *waiter(void *argument) {
    waits_as = syscall(SYS_gettid);
    FAILS(atoll_flock(second, LOCK_EX), EBADF);
    return argument;
}

/* How often the thread has slept. */
static long sleeps(long thread) {
    char name[64], line[128];
    long times = -1;
    snprintf(name, sizeof name, "/proc/self/task/%ld/status", thread);
    FILE *status = fopen(name, "r");
    CHECK(status);
    while (fgets(line, sizeof line, status))
        if (!strncmp(line, "voluntary_ctxt_switches:", 24)) times = atol(line + 24);
    CHECK(fclose(status) == 0 && times >= 0);
    return times;
}

/* A thread that waits for a lock gets none of the volume that is mounted next, though that has a
 * file of the same descriptor. */
static void waiting(const char *volume, const struct atoll_options *options) {
    for (int round = 0; round < 20; round++) {
        CHECK(atoll_mount(volume, options) == 0);
        int first = atoll_open("/waiting", O_CREAT | O_RDWR, 0600);
        CHECK(atoll_flock(first, LOCK_EX) == 0);
        second = atoll_open("/waiting", O_RDWR);
        waits_as = 0;
        pthread_t thread;
        CHECK(!pthread_create(&thread, NULL, waiter, NULL));
        while (!waits_as) usleep(100);
        /* It does nothing but look, and sleep. */
        for (long before = sleeps(waits_as); sleeps(waits_as) < before + 3;) usleep(100);
        CHECK(atoll_unmount() == 0 && atoll_mount(volume, options) == 0);
        CHECK(atoll_open("/waiting", O_CREAT | O_RDWR, 0600) == first);
        CHECK(atoll_open("/waiting", O_RDWR) == second);
        CHECK(!pthread_join(thread, NULL) && atoll_unmount() == 0);
    }
}

/* Memory that is not there is an error, also on a machine that gives out what it does not have. */
static void too_large(void) {
    struct rlimit before, little;
    CHECK(getrlimit(RLIMIT_AS, &before) == 0);
    little = before;
    little.rlim_cur = (rlim_t)1 << 40;
    if (before.rlim_max < little.rlim_cur) little.rlim_cur = before.rlim_max;
    CHECK(setrlimit(RLIMIT_AS, &little) == 0);
    struct atoll_options options = ATOLL_OPTIONS;
    options.flags = ATOLL_RAM;
    uint64_t sizes[] = {UINT64_MAX, (uint64_t)1 << 62, (uint64_t)1 << 46};
    for (int i = 0; i < 3; i++) {
        options.volume_bytes = sizes[i];
        FAILS(atoll_mount(NULL, &options), ENOMEM);
        CHECK(strstr(atoll_error(), "memory"));
    }
    CHECK(setrlimit(RLIMIT_AS, &before) == 0);
}

/* With ATOLL_RELATIME, and not otherwise, reading sets the time of last access, if that is due. */
static void access_times(const char *volume, struct atoll_options options) {
    for (int relatime = 0; relatime < 2; relatime++) {
        options.flags = (options.flags & ~ATOLL_RELATIME) | (relatime ? ATOLL_RELATIME : 0);
        CHECK(atoll_mount(volume, &options) == 0);
        struct statvfs whole;
        CHECK(atoll_statvfs("/", &whole) == 0);
        CHECK(whole.f_flag == (relatime ? ST_RELATIME : ST_NOATIME));
        int fd = atoll_open("/accessed", O_RDWR | O_CREAT, 0600);
        CHECK(fd >= 0 && atoll_write(fd, "text", 4) == 4 && atoll_close(fd) == 0);
        for (int quiet = 1; quiet >= 0; quiet--) {
            struct timespec times[2] = {{1000, 1}, {0, UTIME_OMIT}};
            CHECK(atoll_utimensat(AT_FDCWD, "/accessed", times, 0) == 0);
            struct stat before, after;
            char byte;
            fd = atoll_open("/accessed", O_RDONLY | (quiet ? O_NOATIME : 0));
            CHECK(atoll_fstat(fd, &before) == 0 && before.st_atime == 1000);
            CHECK(atoll_read(fd, &byte, 1) == 1 && atoll_fstat(fd, &after) == 0);
            CHECK((after.st_atime != 1000) == (relatime && !quiet));
            CHECK(after.st_ctim.tv_sec == before.st_ctim.tv_sec &&
                  after.st_ctim.tv_nsec == before.st_ctim.tv_nsec);
            CHECK(atoll_close(fd) == 0);
        }
        CHECK(atoll_unmount() == 0);
    }
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    const char *volume = argv[1], *mode = argv[2];
    struct atoll_options options = ATOLL_OPTIONS;
    options.volume_bytes = 64 << 20;

    FAILS(atoll_open("/x", O_RDONLY), ENODEV);
    FAILS(atoll_close(3), EBADF);
    FAILS(atoll_unmount(), ENODEV);
    CHECK(strstr(atoll_error(), "no volume"));
    FAILS(atoll_mkfs(NULL, &options), EFAULT);
    CHECK(strstr(atoll_error(), "no path"));
    FAILS(atoll_seal(0), ENODEV);
    CHECK(strstr(atoll_error(), "no volume"));
    FAILS(atoll_mount("/nowhere/none", NULL), ENOENT);
    CHECK(strstr(atoll_error(), "/nowhere/none"));
    struct atoll_options wrong = options;
    wrong.size = 8;
    FAILS(atoll_mount(volume, &wrong), EINVAL);
    wrong = options;
    wrong.flags = 1u << 30;
    FAILS(atoll_mount(volume, &wrong), EINVAL);
    FAILS(atoll_mount("/dev/null", NULL), EINVAL);

    int ram = !strcmp(mode, "ram");
    if (!ram) {
        /* A single byte, far from both ends, is worth keeping, and so is the file's length. */
        int held = open(volume, O_RDWR | O_CREAT | O_TRUNC, 0600);
        CHECK(held >= 0 && pwrite(held, "x", 1, 20 << 20) == 1 && !ftruncate(held, 40 << 20));
        FAILS(atoll_mkfs(volume, &options), EEXIST);
        CHECK(lseek(held, 0, SEEK_END) == 40 << 20 && !ftruncate(held, 0));
        /* One that cannot be made leaves a file as long as it was, and none where none was. */
        struct atoll_options tiny = options;
        tiny.volume_bytes = 8192;
        FAILS(atoll_mkfs(volume, &tiny), EINVAL);
        CHECK(lseek(held, 0, SEEK_END) == 0 && !close(held));
        CHECK(unlink(volume) == 0);
        FAILS(atoll_mkfs(volume, &tiny), EINVAL);
        CHECK(strstr(atoll_error(), volume));
        FAILS(access(volume, F_OK), ENOENT);
        CHECK(atoll_mkfs(volume, &options) == 0);
        FAILS(atoll_mkfs(volume, &options), EEXIST);
        options.flags = ATOLL_FORCE;
        CHECK(atoll_mkfs(volume, &options) == 0);
        FAILS(atoll_mount("/bin/sh", &(struct atoll_options){.size = sizeof options,
                                                            .flags = ATOLL_RDONLY}),
              EMEDIUMTYPE);
        CHECK(strstr(atoll_error(), "not an Atoll volume"));
    }
    options.flags = ram ? ATOLL_RAM : !strcmp(mode, "pread") ? ATOLL_PREAD : 0;
    CHECK(atoll_mount(volume, &options) == 0);
    FAILS(atoll_mount(volume, &options), EBUSY);

    descriptors();
    names();
    attributes();
    directories();
    forked();
    interrupted(1);
    interrupted(2);
    threads();

    int left = atoll_open("/kept", O_RDONLY);
    CHECK(left >= 0);
    CHECK(atoll_unmount() == 0);
    FAILS(atoll_close(left), EBADF);
    if (!ram) {
        options.flags |= ATOLL_RDONLY;
        CHECK(atoll_mount(volume, &options) == 0);
        struct stat stat;
        CHECK(atoll_stat("/kept", &stat) == 0 && stat.st_size == 1 << 20);
        FAILS(atoll_unlink("/kept"), EROFS);
        CHECK(atoll_unmount() == 0);
        options.flags &= ~ATOLL_RDONLY;
        options.first_descriptor = 1000;
        CHECK(atoll_mount(volume, &options) == 0);
        CHECK(atoll_open("/kept", O_RDONLY) == 1000 && atoll_unmount() == 0);
    }
    options.first_descriptor = 0;
    access_times(volume, options);
    again(volume, &options);
    waiting(volume, &options);
    too_large();
    puts("conforms");
    return 0;
}
