/* A sealed guest. Usage: sealed VOLUME MODE WHAT, where MODE is pread or mapped and WHAT is work or
 * the name of something forbidden. Prints the most memory that the guest used, in KiB. */
#define _GNU_SOURCE
#include "atoll.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char *text) { (void)!write(2, text, strlen(text)); }

#define CHECK(condition)                                                                      \
    do {                                                                                      \
        if (!(condition)) {                                                                   \
            say("not so: " #condition ": ");                                                  \
            say(strerrorname_np(errno) ?: "?");                                               \
            say("\n");                                                                        \
            _exit(1);                                                                         \
        }                                                                                     \
    } while (0)

static unsigned long long state = 1;

static unsigned chance(unsigned below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(state >> 33) % below;
}

enum { FILES = 1000, NAMES = FILES * 2, TRANSACTIONS = 2000, LEAST = 500, MOST = 10000 };

/* The content of each file: its length, and bytes that follow from its number. */
static unsigned length_of[NAMES];
static unsigned char wrote[512], got[512];

static const char *name_of(unsigned file) {
    static char name[16];
    char *at = name + sizeof name - 1;
    for (*at = 0; file; file /= 10) *--at = '0' + file % 10;
    *--at = 'f';
    *--at = '/';
    return at;
}

static void content(unsigned char *block, unsigned file, unsigned offset, unsigned n) {
    for (unsigned i = 0; i < n; i++) block[i] = (file * 31 + offset + i) * 167 >> 3;
}

static void add(unsigned file, int how, unsigned bytes) {
    int fd = atoll_open(name_of(file), how, 0644);
    CHECK(fd >= 0);
    while (bytes > 0) {
        unsigned n = bytes < sizeof wrote ? bytes : sizeof wrote;
        content(wrote, file, length_of[file], n);
        CHECK(atoll_write(fd, wrote, n) == (ssize_t)n);
        length_of[file] += n;
        bytes -= n;
    }
    CHECK(atoll_close(fd) == 0);
}

static void create(void) {
    unsigned file = chance(NAMES);
    while (length_of[file]) file = (file + 1) % NAMES;
    add(file, O_CREAT | O_EXCL | O_WRONLY, LEAST + chance(MOST - LEAST));
}

static unsigned existing(void) {
    unsigned file = chance(NAMES);
    while (!length_of[file]) file = (file + 1) % NAMES;
    return file;
}

static void read_whole(unsigned file) {
    int fd = atoll_open(name_of(file), O_RDONLY);
    CHECK(fd >= 0);
    unsigned offset = 0;
    ssize_t n;
    while ((n = atoll_read(fd, got, sizeof got)) > 0) {
        content(wrote, file, offset, n);
        CHECK(!memcmp(wrote, got, n));
        offset += n;
    }
    CHECK(n == 0 && offset == length_of[file] && atoll_close(fd) == 0);
}

static void delete(unsigned file) {
    CHECK(atoll_unlink(name_of(file)) == 0);
    length_of[file] = 0;
}

/* Locks, which other threads could hold. */
static void lock_and_unlock(unsigned file) {
    int fd = atoll_open(name_of(file), O_RDWR), same = atoll_open(name_of(file), O_RDWR);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    CHECK(fd >= 0 && same >= 0 && atoll_fcntl(fd, F_SETLKW, &lock) == 0);
    CHECK(atoll_fcntl(same, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK);
    CHECK(atoll_flock(fd, LOCK_EX) == 0);
    CHECK(atoll_flock(same, LOCK_EX | LOCK_NB) == -1 && errno == EWOULDBLOCK);
    CHECK(atoll_close(same) == 0 && atoll_close(fd) == 0);
}

/* PostMark's workload: many small files, then reading or appending, creating or deleting. */
static void work(void) {
    for (int i = 0; i < FILES; i++) create();
    for (int i = 0; i < TRANSACTIONS; i++) {
        unsigned file = existing();
        if (chance(2)) {
            read_whole(file);
        } else if (length_of[file] < MOST) {
            add(file, O_WRONLY | O_APPEND, 1 + chance(MOST - length_of[file]));
        }
        int count = 0;
        for (int j = 0; j < NAMES; j++) count += length_of[j] > 0;
        if (count < NAMES - 1 && chance(2)) {
            create();
        } else if (count > 1) {
            delete(existing());
        }
        if (i % 200 == 0) {
            lock_and_unlock(existing());
            int fd = atoll_open(name_of(existing()), O_RDWR);
            CHECK(fd >= 0 && atoll_fsync(fd) == 0 && atoll_close(fd) == 0);
        }
    }
    for (int i = 0; i < NAMES; i++)
        if (length_of[i]) read_whole(i);
    for (int i = 0; i < NAMES; i++)
        if (length_of[i] && i % 10) delete(i);
    CHECK(atoll_sync() == 0);
}

static int device_fd(const char *volume) {
    struct stat wanted, found;
    CHECK(stat(volume, &wanted) == 0);
    for (int fd = 3; fd < 64; fd++)
        if (fstat(fd, &found) == 0 && found.st_ino == wanted.st_ino &&
            found.st_dev == wanted.st_dev)
            return fd;
    _exit(1);
}

static void forbidden(const char *what, int fd, int other) {
    char byte = 0;
    if (!strcmp(what, "open")) syscall(SYS_open, "/dev/null", O_RDONLY);
    if (!strcmp(what, "openat")) syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDONLY);
    if (!strcmp(what, "mmap"))
        syscall(SYS_mmap, 0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!strcmp(what, "mprotect")) syscall(SYS_mprotect, 0, 4096, PROT_READ | PROT_EXEC);
    if (!strcmp(what, "brk")) syscall(SYS_brk, 0);
    if (!strcmp(what, "fork")) syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (!strcmp(what, "execve")) syscall(SYS_execve, "/bin/true", NULL, NULL);
    if (!strcmp(what, "socket")) syscall(SYS_socket, AF_UNIX, SOCK_STREAM, 0);
    if (!strcmp(what, "read")) syscall(SYS_read, fd, &byte, 1);
    if (!strcmp(what, "write to the volume")) syscall(SYS_write, fd, &byte, 1);
    if (!strcmp(what, "pread elsewhere")) syscall(SYS_pread64, other, &byte, 1, 0);
    if (!strcmp(what, "pwrite elsewhere")) syscall(SYS_pwrite64, other, &byte, 1, 0);
    if (!strcmp(what, "pwrite beyond")) syscall(SYS_pwrite64, fd, &byte, 1, 1ul << 30);
    if (!strcmp(what, "close")) syscall(SYS_close, fd);
    if (!strcmp(what, "ftruncate")) syscall(SYS_ftruncate, fd, 0);
    if (!strcmp(what, "getpid")) syscall(SYS_getpid);
    if (!strcmp(what, "kill")) syscall(SYS_kill, 0, 0);
    /* Not killed: it was allowed. */
    _exit(99);
}

/* Memory that a process has now, in KiB, or 0. Not that of getrusage(2), which the kernel adds
 * up with an error of some pages for each processor. */
static long memory_of(pid_t process) {
    char line[128];
    long now = 0;
    snprintf(line, sizeof line, "/proc/%d/smaps_rollup", (int)process);
    FILE *file = fopen(line, "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "Rss: %ld", &now) == 1) break;
    if (file) fclose(file);
    return now;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    const char *volume = argv[1], *what = argv[3];
    int pread = !strcmp(argv[2], "pread");
    struct atoll_options options = ATOLL_OPTIONS;
    int status;
    /* Made by another process, whose memory is not the guest's. */
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        options.volume_bytes = 1 << 30;
        options.flags = ATOLL_FORCE;
        _exit(atoll_mkfs(volume, &options) != 0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);

    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        options.flags = ATOLL_SEALABLE | (pread ? ATOLL_PREAD : 0);
        options.cache_bytes = 1 << 20;
        if (atoll_mount(volume, &options) != 0) {
            say(atoll_error());
            _exit(1);
        }
        int fd = device_fd(volume), other = open("/dev/zero", O_RDWR);
        if (atoll_seal(5 << 19) != 0) {
            say(atoll_error());
            _exit(1);
        }
        if (!strcmp(what, "work")) {
            work();
        } else {
            forbidden(what, fd, other);
        }
        _exit(0);
    }
    long most = 0;
    pid_t ended;
    /* A sealed process gives no memory back, so that looking now and then finds the most. */
    while ((ended = waitpid(child, &status, WNOHANG)) == 0) {
        long now = memory_of(child);
        if (now > most) most = now;
        usleep(2000);
    }
    CHECK(ended == child);
    if (WIFSIGNALED(status)) {
        printf("killed by %s\n", sigabbrev_np(WTERMSIG(status)));
        return 0;
    }
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);

    /* The volume is as the guest left it. */
    CHECK(atoll_mount(volume, NULL) == 0);
    ATOLL_DIR *dir = atoll_opendir("/");
    int count = 0;
    while (atoll_readdir(dir)) count++;
    CHECK(count > 2 && atoll_closedir(dir) == 0 && atoll_unmount() == 0);
    printf("%ld\n", most);
    return 0;
}
