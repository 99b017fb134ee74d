/* Uses the calls that the image answers, each once and checked, then makes many files in one
   directory, and fills a small volume. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysinfo.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "../../../../libatoll/tests/c/check.h"

static void calls(const char *small)
{
    char text[64];
    struct stat found, other;
    int fd = open("f", O_RDWR | O_CREAT | O_EXCL, 0640);
    CHECK(fd == 3);
    FAILS(open("f", O_CREAT | O_EXCL, 0640), EEXIST);
    struct iovec out[3] = {{"one ", 4}, {"", 0}, {"two", 3}};
    CHECK(writev(fd, out, 3) == 7);
    CHECK(pwrite(fd, "ONE", 3, 0) == 3 && lseek(fd, 0, SEEK_CUR) == 7);
    char a[4], b[8];
    struct iovec in[2] = {{a, 4}, {b, 8}};
    CHECK(preadv(fd, in, 2, 0) == 7 && !memcmp(a, "ONE ", 4) && !memcmp(b, "two", 3));
    CHECK(lseek(fd, -3, SEEK_END) == 4 && read(fd, text, 64) == 3 && read(fd, text, 64) == 0);
    FAILS(lseek(fd, -100, SEEK_END), EINVAL);
    CHECK(fstat(fd, &found) == 0 && found.st_size == 7 && (found.st_mode & 0777) == 0640);
    CHECK(stat("f", &other) == 0 && other.st_ino == found.st_ino && other.st_nlink == 1);
    CHECK(link("f", "g") == 0 && stat("g", &other) == 0 && other.st_nlink == 2);
    CHECK(symlink("g", "l") == 0 && readlink("l", text, 64) == 1 && text[0] == 'g');
    CHECK(lstat("l", &other) == 0 && S_ISLNK(other.st_mode));
    CHECK(rename("g", "h") == 0 && access("h", R_OK | W_OK) == 0);
    FAILS(access("g", F_OK), ENOENT);
    FAILS(open("l", O_RDONLY), ENOENT);
    CHECK(chmod("h", 0600) == 0 && chown("h", 5, 6) == 0 && stat("f", &found) == 0);
    CHECK((found.st_mode & 0777) == 0600 && found.st_uid == 5 && found.st_gid == 6);
    struct timespec times[2] = {{1000, 5}, {2000, UTIME_OMIT}};
    CHECK(utimensat(AT_FDCWD, "f", times, 0) == 0 && stat("f", &found) == 0);
    CHECK(found.st_atim.tv_sec == 1000 && found.st_atim.tv_nsec == 5);
    CHECK(found.st_mtim.tv_sec != 2000);
    struct statx wide;
    CHECK(statx(AT_FDCWD, "f", 0, STATX_ALL, &wide) == 0 && wide.stx_size == 7);
    CHECK(wide.stx_atime.tv_sec == 1000 && wide.stx_ino == found.st_ino);
    CHECK(ftruncate(fd, 100) == 0 && truncate("f", 50) == 0 && lseek(fd, 0, SEEK_END) == 50);
    CHECK(fallocate(fd, 0, 0, 8192) == 0 && fstat(fd, &found) == 0 && found.st_size == 8192);
    CHECK(fsync(fd) == 0 && fdatasync(fd) == 0);
    CHECK(setxattr("f", "user.x", "value", 5, 0) == 0 && getxattr("f", "user.x", text, 64) == 5);
    CHECK(listxattr("f", text, 64) == 7 && removexattr("f", "user.x") == 0);
    int copy = dup(fd), third = fcntl(fd, F_DUPFD_CLOEXEC, 10);
    CHECK(copy == 4 && third == 10 && fcntl(third, F_GETFD) == FD_CLOEXEC);
    CHECK(dup2(fd, 20) == 20 && lseek(20, 0, SEEK_CUR) == lseek(fd, 0, SEEK_CUR));
    CHECK((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR && flock(fd, LOCK_EX) == 0);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10};
    CHECK(fcntl(fd, F_SETLK, &lock) == 0 && fcntl(fd, F_GETLK, &lock) == 0);
    CHECK(lock.l_type == F_UNLCK);
    CHECK(close(copy) == 0 && close(third) == 0 && close(20) == 0);
    FAILS(close(20), EBADF);
    int to = open("copied", O_RDWR | O_CREAT, 0600);
    off_t from_at = 0;
    CHECK(copy_file_range(fd, &from_at, to, NULL, 7, 0) == 7 && from_at == 7);
    from_at = 0;
    CHECK(sendfile(to, fd, &from_at, 7) == 7 && lseek(to, 0, SEEK_CUR) == 14);
    CHECK(pread(to, text, 64, 0) == 14 && !memcmp(text, "ONE twoONE two", 14));
    CHECK(close(to) == 0 && close(fd) == 0);
    CHECK(mkdir("d", 0755) == 0 && chdir("d") == 0 && getcwd(text, 64) == text);
    CHECK(strlen(text) > 2 && !strcmp(text + strlen(text) - 2, "/d") && chdir("..") == 0);
    FAILS(getcwd(text, 2) == NULL ? -1 : 0, ERANGE);
    FAILS(chdir("f"), ENOTDIR);
    CHECK(rmdir("d") == 0 && unlink("f") == 0 && unlink("h") == 0 && unlink("l") == 0);
    CHECK(unlink("copied") == 0);
    struct statfs space;
    CHECK(statfs(".", &space) == 0 && space.f_bsize == 4096 && space.f_bfree > 0);
    /* Of the volume that it is asked about: 600 MiB, and 4. */
    CHECK(space.f_blocks > 140000 && statfs(small, &space) == 0 && space.f_blocks <= 1024);
    /* Wrong addresses are errors. */
    FAILS(open((char *)8, O_RDONLY), EFAULT);
    FAILS(stat("/", (struct stat *)8), EFAULT);
    FAILS(write(1, (char *)0x12345678000, 5), EFAULT);
    FAILS(read(0, (char *)calls, 5), EFAULT);
    /* The streams are no files, and no terminal's. */
    CHECK(fstat(1, &found) == 0 && S_ISCHR(found.st_mode) && !isatty(1));
    struct pollfd polled = {1, POLLOUT, 0};
    CHECK(poll(&polled, 1, 0) == 1 && polled.revents == POLLOUT);
    int zero = open("/dev/zero", O_RDONLY), null = open("/dev/null", O_WRONLY);
    CHECK(read(zero, text, 64) == 64 && text[63] == 0 && write(null, text, 64) == 64);
    CHECK(close(zero) == 0 && close(null) == 0);
    struct utsname name;
    CHECK(uname(&name) == 0 && !strcmp(name.sysname, "Linux") && !strcmp(name.machine, "x86_64"));
    struct sysinfo system;
    CHECK(sysinfo(&system) == 0 && system.totalram > 1 << 20 && system.freeram < system.totalram);
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur == 8 << 20);
    unsigned char random[2][16];
    CHECK(getrandom(random, 32, 0) == 32 && memcmp(random[0], random[1], 16));
    struct timespec before, after, nap = {0, 2000000};
    CHECK(clock_gettime(CLOCK_MONOTONIC, &before) == 0 && nanosleep(&nap, NULL) == 0);
    CHECK(clock_gettime(CLOCK_MONOTONIC, &after) == 0);
    CHECK((after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec >= 2000000);
    /* After 2020, and before 2100. */
    time_t now = time(NULL);
    CHECK(now > 1577836800 && now < 4102444800);
    puts("calls");
}

static void memory(void)
{
    size_t len = 8 << 20;
    char *all = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(all != MAP_FAILED);
    for (size_t at = 0; at < len; at += 4096) {
        CHECK(all[at] == 0);
        all[at] = (char)(at >> 12);
    }
    /* A hole, then one part with other rights, then larger, and elsewhere. */
    CHECK(munmap(all + 4096, 4096) == 0 && mprotect(all, 4096, PROT_READ) == 0);
    FAILS(read(0, all, 1), EFAULT);
    FAILS(write(1, all + 4096, 1), EFAULT);
    FAILS(mprotect(all, 3 * 4096, PROT_READ), ENOMEM);
    CHECK(all[8192] == 2 && mprotect(all, 4096, PROT_NONE) == 0);
    CHECK(mprotect(all, 4096, PROT_READ | PROT_WRITE) == 0 && all[0] == 0);
    char *moved = mremap(all + 8192, len - 8192, 2 * len, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED && moved[0] == 2 && moved[4096] == 3 && moved[2 * len - 1] == 0);
    CHECK(munmap(moved, 2 * len) == 0);
    CHECK(mmap((void *)0x12345000, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
               0) == (void *)0x12345000);
    FAILS(mmap((void *)0x12345000, 4096, PROT_READ,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0), EEXIST);
    int fd = open("m", O_RDWR | O_CREAT, 0600);
    CHECK(write(fd, "mapped", 6) == 6);
    char *file = mmap(NULL, 6, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(file != MAP_FAILED && !memcmp(file, "mapped\0\0", 8));
    file[0] = 'M';
    char text[8];
    CHECK(pread(fd, text, 8, 0) == 6 && text[0] == 'm');
    FAILS(mmap(NULL, 6, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), ENODEV);
    FAILS(mmap(NULL, 6, PROT_READ, MAP_PRIVATE, fd, -4096), EOVERFLOW);
    CHECK(close(fd) == 0 && unlink("m") == 0);
    char *top = sbrk(0);
    CHECK(sbrk(1 << 20) == top && (top[(1 << 20) - 1] = 1) && sbrk(-(1 << 20)) != (void *)-1);
    CHECK(sbrk(0) == top);
    /* More than there is is refused, not promised. */
    FAILS(mmap(NULL, 1L << 40, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), ENOMEM);
    CHECK(mmap(NULL, 1L << 40, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
    puts("memory");
}

static void many(long count)
{
    char name[32], text[32];
    CHECK(mkdir("many", 0755) == 0 && chdir("many") == 0);
    for (long i = 0; i < count; i++) {
        snprintf(name, sizeof name, "file %ld", i);
        int fd = open(name, O_WRONLY | O_CREAT | O_EXCL, 0600);
        CHECK(fd >= 0 && write(fd, name, strlen(name)) == (ssize_t)strlen(name) && close(fd) == 0);
    }
    DIR *folder = opendir(".");
    CHECK(folder != NULL);
    long found = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        found += entry->d_name[0] == 'f';
    CHECK(closedir(folder) == 0 && found == count);
    for (long i = 0; i < count; i += 97) {
        snprintf(name, sizeof name, "file %ld", i);
        int fd = open(name, O_RDONLY);
        ssize_t len = read(fd, text, sizeof text);
        CHECK(len == (ssize_t)strlen(name) && !memcmp(name, text, (size_t)len) && close(fd) == 0);
    }
    for (long i = 0; i < count; i++) {
        snprintf(name, sizeof name, "file %ld", i);
        CHECK(unlink(name) == 0);
    }
    CHECK(chdir("..") == 0 && rmdir("many") == 0);
    printf("files %ld\n", found);
}

static void full(void)
{
    static char block[4096];
    memset(block, 'x', sizeof block);
    int fd = open("full", O_WRONLY | O_CREAT, 0600);
    long written = 0;
    ssize_t len;
    while ((len = write(fd, block, sizeof block)) > 0)
        written += len;
    CHECK(len == -1 && errno == ENOSPC && written > 1 << 20);
    FAILS(write(fd, block, sizeof block), ENOSPC);
    CHECK(close(fd) == 0);
    struct stat found;
    CHECK(stat("full", &found) == 0 && found.st_size == written);
    /* What was removed can be written again. */
    CHECK(unlink("full") == 0);
    fd = open("again", O_WRONLY | O_CREAT, 0600);
    for (long at = 0; at < written / 2; at += 4096)
        CHECK(write(fd, block, sizeof block) == sizeof block);
    CHECK(close(fd) == 0 && unlink("again") == 0);
    puts("full");
}

int main(int count, char **arguments)
{
    CHECK(count == 4 && chdir(arguments[2]) == 0);
    calls(arguments[3]);
    memory();
    many(atol(arguments[1]));
    CHECK(chdir(arguments[3]) == 0);
    full();
    puts("end");
    return 0;
}
