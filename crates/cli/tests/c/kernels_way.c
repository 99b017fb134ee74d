// What a kernel has right of every file system, in a directory of its own: kernels_way.rs says how.
// Ends with 0 if it is right, 77 where it cannot be tested, and says what is wrong otherwise.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int wrong;
#define CHECK(what) ((what) ? (void)0 : fails(__LINE__, #what))

static void fails(int line, const char *what) {
    printf("line %d: %s: %s\n", line, what, strerror(errno));
    wrong = 1;
}

static int file(const char *name, char fill, size_t length) {
    char *data = malloc(length + 1);
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (!data) abort();
    memset(data, fill, length);
    CHECK(fd >= 0 && write(fd, data, length) == (ssize_t)length);
    free(data);
    return fd;
}

// One position, whoever reads and writes by the descriptor.
static void position(void) {
    char b[16] = {0}, all[1000];
    int fd = file("f", 'x', 0);
    for (int i = 0; i < 100; i++) {
        snprintf(b, sizeof b, "%08d\n", i);
        CHECK(write(fd, b, 9) == 9);
    }
    lseek(fd, 0, SEEK_SET);
    for (int i = 0; i < 20; i++) CHECK(read(fd, b, 9) == 9);
    CHECK(syscall(SYS_lseek, fd, 0, SEEK_CUR) == 180);
    CHECK(syscall(SYS_read, fd, b, 9) == 9 && !memcmp(b, "00000020", 8));
    CHECK(read(fd, b, 9) == 9 && !memcmp(b, "00000021", 8));
    CHECK(syscall(SYS_write, fd, "WRITTEN!", 8) == 8);
    CHECK(pread(fd, all, sizeof all, 0) == 900 && !memcmp(all + 198, "WRITTEN!", 8));
    // Closed and opened behind the library's back, with a twin open.
    int twin = dup(fd), other = file("g", 'g', 2000);
    close(other);
    syscall(SYS_close, fd);
    int again = syscall(SYS_openat, AT_FDCWD, "g", O_RDWR, 0);
    CHECK(again == fd && pread(again, b, 1, 0) == 1 && b[0] == 'g');
    CHECK(pwrite(again, "WRITTEN", 7, 0) == 7);
    CHECK(pread(twin, b, 9, 0) == 9 && !memcmp(b, "00000000", 8));
}

// Memory that is none is EFAULT, or as many bytes as there was room for.
static void memory(void) {
    int fd = file("f", 'x', 8192);
    char *page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(page + 4096, 4096, PROT_NONE);
    for (int i = 0; i < 40; i++) CHECK(pread(fd, page, 4096, 0) == 4096);
    CHECK(pread(fd, page + 4096, 200, 0) == -1 && errno == EFAULT);
    CHECK(pread(fd, page + 4000, 200, 0) == 96);
    CHECK(pwrite(fd, page + 4096, 200, 0) == -1 && errno == EFAULT);
    ssize_t wrote = pwrite(fd, page + 4000, 200, 0);
    CHECK(wrote == 96 || (wrote == -1 && errno == EFAULT));
    CHECK(fcntl(fd, F_SETLK, page + 4096) == -1 && errno == EFAULT);
    CHECK(syscall(SYS_fstat, fd, page + 4096) == -1 && errno == EFAULT);
}

static int in_use, verb;
static char buffer[4096];

static void *work(void *unused) {
    struct timespec little = {0, 1000000};
    for (;;) {
        ssize_t n = 0;
        switch (verb) {
        case 0: n = pwrite(in_use, buffer, 4096, 0); break;
        case 1: n = pread(in_use, buffer, 4096, 0); break;
        case 2: n = fsync(in_use); break;
        default: n = fdatasync(in_use), nanosleep(&little, 0);
        }
        if (n < 0) return unused;
    }
}

// Threads that read, write or sync are cancelled.
static void cancel(void) {
    in_use = file("f", 'x', 8192);
    for (verb = 0; verb < 4; verb++) {
        pthread_t thread;
        struct timespec until;
        void *result = 0;
        CHECK(pthread_create(&thread, 0, work, 0) == 0);
        usleep(20000);
        pthread_cancel(thread);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 30;
        CHECK(pthread_timedjoin_np(thread, &result, &until) == 0 && result == PTHREAD_CANCELED);
    }
}

// A limit that another way than setrlimit(2) has set holds.
static void limit(void) {
    struct rlimit most = {1000, 1000};
    int fd = file("f", 'x', 100);
    signal(SIGXFSZ, SIG_IGN);
    CHECK(prlimit(0, RLIMIT_FSIZE, &most, 0) == 0);
    CHECK(pwrite(fd, buffer, 100, 2000) == -1 && errno == EFBIG);
    CHECK(ftruncate(fd, 5000) == -1 && errno == EFBIG);
}

static sigjmp_buf back;
static void jump(int number) { siglongjmp(back, number); }

// A page of a mapping behind the end of its file is SIGBUS, and nothing else is lost by it.
static void cut(void) {
    int fd = file("f", 'x', 8192);
    char *map = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED && errno == ENODEV) exit(77);
    CHECK(map != MAP_FAILED);
    signal(SIGBUS, jump);
    signal(SIGSEGV, jump);
    map[0] = map[4096] = 1;
    for (int store = 0; store < 2; store++) {
        CHECK(ftruncate(fd, 100) == 0);
        int number = sigsetjmp(back, 1);
        if (number == 0) {
            if (store) map[4096] = 2;
            else number = map[4096];
            CHECK(!"a page behind the end is there");
        }
        CHECK(number == SIGBUS);
        CHECK(map[0] == 1);
    }
    CHECK(ftruncate(fd, 8192) == 0);
    if (sigsetjmp(back, 1) == 0) CHECK(map[4096] == 0 && map[100] == 0 && map[0] == 1);
    else CHECK(!"a page within the file is not there");
}

int main(int count, char **arguments) {
    const char *names[] = {"position", "memory", "cancel", "limit", "cut"};
    void (*all[])(void) = {position, memory, cancel, limit, cut};
    for (int i = 0; count > 1 && i < 5; i++)
        if (!strcmp(names[i], arguments[1])) {
            all[i]();
            fflush(stdout);
            _exit(wrong);
        }
    return 2;
}
