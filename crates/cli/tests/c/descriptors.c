/* Does all that a program may do with descriptors and offsets, and prints everything that it sees:
 * run in an empty directory of two file systems, its output is the same. Its argument is that
 * directory; with more it is one of its own children. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static const char *me;
/* A bad address and a negative number, which the compiler is not to see. */
static char *volatile nowhere;
static volatile int negative = -1;
static FILE *some(FILE *file) { return file ? file : (abort(), NULL); }

/* Prints a call, its result and the error. */
#define P(call)                                                                               \
    ({                                                                                        \
        errno = 0;                                                                            \
        long result_ = (long)(call);                                                          \
        printf("%d %s = %ld %s\n", __LINE__, #call, result_, errno ? strerror(errno) : "");   \
        fflush(stdout);                                                                       \
        result_;                                                                              \
    })

/* The content of a file, through a descriptor of its own. */
static void show(const char *name) {
    static char text[1 << 16];
    int fd = open(name, O_RDONLY);
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    printf("%s:", name);
    for (ssize_t i = 0; i < n; i++) {
        int run = 1;
        while (i + run < n && text[i + run] == text[i]) run++;
        if (run > 8) {
            printf("<%02x x %d>", (unsigned char)text[i], run);
            i += run - 1;
        } else {
            printf(text[i] >= ' ' ? "%c" : "<%02x>", text[i]);
        }
    }
    printf("\n");
    fflush(stdout);
}

static int fresh(const char *name, int flags) {
    unlink(name);
    return open(name, O_RDWR | O_CREAT | flags, 0644);
}

static char buf[1 << 16];
#define POS(fd) P(lseek(fd, 0, SEEK_CUR))

/* The offset as the kernel has it. */
static long kernel_pos(int fd) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *file = fopen(path, "r");
    long pos = -1;
    if (!file || fscanf(file, "pos: %ld", &pos) != 1) abort();
    fclose(file);
    return pos;
}

static void wait_for(pid_t pid) {
    int status;
    P(waitpid(pid, &status, 0) == pid);
    P(status);
}

static void offsets(void) {
    int fd = fresh("a", 0);
    P(write(fd, "hello world", 11));
    POS(fd);
    P(lseek(fd, 6, SEEK_SET));
    P(read(fd, buf, 3));
    P(lseek(fd, -2, SEEK_CUR));
    P(read(fd, buf, 100));
    P(read(fd, buf, 100));
    POS(fd);
    P(lseek(fd, -5, SEEK_END));
    P(lseek(fd, -50, SEEK_END));
    P(lseek(fd, -50, SEEK_SET));
    P(lseek(fd, 0, 77));
    P(lseek(fd, 1ll << 40, SEEK_SET));
    P(lseek(fd, INT64_MAX, SEEK_CUR));
    P(read(fd, buf, 1));
    P(lseek(fd, 20, SEEK_SET));
    P(write(fd, "x", 1));
    show("a");
    P(pread(fd, buf, 5, 3));
    P(pread(fd, buf, 5, -1));
    P(pwrite(fd, "HE", 2, 0));
    P(pwrite(fd, "HE", 2, -7));
    POS(fd);
    P(read(fd, buf, 0));
    P(write(fd, buf, 0));
    /* Not at the end, where file systems differ. */
    P(lseek(fd, 0, SEEK_SET));
    P(read(fd, nowhere, 5));
    P(write(fd, nowhere + 8, 5));
    P(read(fd, nowhere + 8, 5));
    P(lseek(fd, 21, SEEK_SET));
    POS(fd);
    struct iovec iov[3] = {{buf, 3}, {buf + 10, 0}, {buf + 20, 4}};
    memcpy(buf, "abc", 3);
    memcpy(buf + 20, "defg", 4);
    P(writev(fd, iov, 3));
    P(pwritev(fd, iov, 3, 2));
    P(lseek(fd, 0, SEEK_SET));
    P(readv(fd, iov, 3));
    P(preadv(fd, iov, 3, 4));
    P(preadv2(fd, iov, 3, -1, 0));
    P(pwritev2(fd, iov, 1, -1, 0));
    P(readv(fd, iov, negative));
    P(readv(fd, iov, 0));
    P(readv(fd, iov, negative + 2001));
    POS(fd);
    close(fd);
    fd = open("a", O_RDWR);
    struct stat attr;
    P(fstat(fd, &attr));
    P(attr.st_size);
    P(attr.st_mode);
    P(attr.st_nlink);
    struct stat by_path;
    P(stat("a", &by_path));
    P(memcmp(&by_path, &attr, sizeof attr));
    P(fstatat(fd, "", &by_path, AT_EMPTY_PATH));
    P(memcmp(&by_path, &attr, sizeof attr));
    P(ftruncate(fd, 4));
    POS(fd);
    P(ftruncate(fd, -4));
    P(write(fd, "end", 3));
    show("a");
    P(fsync(fd));
    P(fdatasync(fd));
    P(fallocate(fd, 0, 0, 1000));
    P(lseek(fd, 0, SEEK_END));
    P(posix_fallocate(fd, 0, 2000));
    P(lseek(fd, 0, SEEK_END));
    P(fallocate(fd, 0, -1, 1000));
    int left;
    P(lseek(fd, 100, SEEK_SET));
    P(ioctl(fd, FIONREAD, &left));
    P(left);
    int read_only = open("a", O_RDONLY), write_only = open("a", O_WRONLY);
    P(write(read_only, "x", 1));
    P(pwrite(read_only, "x", 1, 0));
    P(ftruncate(read_only, 1));
    P(fallocate(read_only, 0, 0, 1));
    P(read(write_only, buf, 1));
    P(pread(write_only, buf, 1, 0));
    P(close(read_only));
    P(close(read_only));
    P(read(read_only, buf, 1));
    P(lseek(read_only, 0, SEEK_SET));
    P(close(write_only));
    P(close(fd));
    int path_only = open("a", O_PATH);
    P(read(path_only, buf, 1));
    P(fstat(path_only, &attr));
    close(path_only);
}

static void appends(void) {
    int fd = fresh("b", O_APPEND), other = open("b", O_RDWR);
    P(write(fd, "one", 3));
    POS(fd);
    P(write(other, "ONE and more", 12));
    POS(other);
    P(write(fd, "two", 3));
    POS(fd);
    P(lseek(fd, 1, SEEK_SET));
    P(read(fd, buf, 2));
    POS(fd);
    P(pwrite(fd, "three", 5, 0));
    POS(fd);
    show("b");
    P(fcntl(fd, F_SETFL, 0));
    P(write(fd, "W", 1));
    POS(fd);
    P(fcntl(fd, F_SETFL, O_APPEND));
    P(write(fd, "A", 1));
    POS(fd);
    P(fcntl(fd, F_GETFL) & O_APPEND);
    show("b");
    close(fd);
    close(other);
}

static void duplicates(void) {
    int fd = fresh("c", 0);
    int d1 = dup(fd);
    P(write(fd, "123", 3));
    POS(d1);
    int d2 = P(dup2(fd, 100));
    int d3 = P(fcntl(d1, F_DUPFD_CLOEXEC, 150));
    int d4 = P(dup3(d2, 200, O_CLOEXEC));
    P(write(d3, "456", 3));
    POS(fd);
    P(close(fd));
    P(lseek(d4, 1, SEEK_SET));
    P(read(d2, buf, 2));
    POS(d1);
    /* Onto an open one, and onto itself. */
    int other = fresh("d", 0);
    P(write(other, "other", 5));
    P(dup2(d1, other));
    POS(other);
    P(write(other, "X", 1));
    P(dup2(other, other));
    P(dup2(-1, other));
    P(dup3(other, other, 0));
    P(dup2(999, other));
    POS(other);
    P(write(other, "Y", 1));
    show("c");
    show("d");
    /* The number is used again at once. */
    P(close(other));
    int again = P(open("d", O_RDWR));
    P(read(again, buf, 5));
    POS(again);
    P(close_range(again, again, 0));
    P(read(again, buf, 5));
    P(close_range(100, 99, 0));
    POS(d2);
    P(write(d2, "Z", 1));
    closefrom(100);
    POS(d1);
    P(write(d1, "!", 1));
    show("c");
    close(d1);
}

static void standard_streams(void) {
    int saved = dup(1), fd = fresh("e", 0);
    write(fd, "first ", 6);
    fflush(stdout);
    dup2(fd, 1);
    printf("printed ");
    fflush(stdout);
    write(fd, "written ", 8);
    write(1, "again ", 6);
    system("printf by-a-child");
    printf(" last\n");
    fflush(stdout);
    long at = lseek(fd, 0, SEEK_CUR);
    dup2(saved, 1);
    P(at);
    show("e");
    close(saved);
    close(fd);
}

static void forks(void) {
    int fd = fresh("f", 0), closed = fresh("g", O_CLOEXEC);
    P(write(fd, "parent ", 7));
    P(write(closed, "parent ", 7));
    pid_t pid = fork();
    if (pid == 0) {
        write(fd, "child ", 6);
        write(closed, "child ", 6);
        int own = fresh("h", 0);
        write(own, "own", 3);
        lseek(own, 1, SEEK_SET);
        write(own, "W", 1);
        _exit(lseek(own, 0, SEEK_CUR));
    }
    wait_for(pid);
    POS(fd);
    POS(closed);
    P(write(fd, "parent", 6));
    show("f");
    show("g");
    show("h");
    /* Both at once, at one offset. */
    pid = fork();
    for (int i = 0; i < 500; i++) write(fd, pid ? "p" : "c", 1);
    if (pid == 0) _exit(0);
    wait_for(pid);
    POS(fd);
    int counts[2] = {0, 0};
    ssize_t n = pread(fd, buf, sizeof buf, 19);
    for (ssize_t i = 0; i < n; i++) counts[buf[i] == 'p']++;
    P(counts[0]);
    P(counts[1]);
    close(fd);
    close(closed);
    /* A read is shared as well. */
    fd = fresh("i", 0);
    P(write(fd, "0123456789", 10));
    P(lseek(fd, 2, SEEK_SET));
    pid = fork();
    if (pid == 0) {
        char c;
        read(fd, &c, 1);
        execl(me, me, ".", "read", "9", NULL);
        _exit(1);
    }
    wait_for(pid);
    POS(fd);
    close(fd);
}

static void spawns(void) {
    int fd = fresh("j", 0);
    P(write(fd, "before ", 7));
    char number[16];
    snprintf(number, sizeof number, "%d", fd);
    pid_t pid;
    char *argv[] = {(char *)me, ".", "write", number, NULL};
    P(posix_spawn(&pid, me, NULL, NULL, argv, environ));
    wait_for(pid);
    POS(fd);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 1);
    char *echo[] = {"echo", "echoed", NULL};
    P(posix_spawnp(&pid, "echo", &actions, NULL, echo, environ));
    wait_for(pid);
    posix_spawn_file_actions_destroy(&actions);
    P(write(fd, "after ", 6));
    char command[64];
    snprintf(command, sizeof command, "echo system >&%d", fd);
    P(system(command));
    P(write(fd, "after ", 6));
    snprintf(command, sizeof command, "cat >&%d", fd);
    FILE *pipe = some(popen(command, "w"));
    fprintf(pipe, "popened\n");
    P(pclose(pipe));
    POS(fd);
    show("j");
    /* A descriptor that nothing but the new process has made shared. */
    fd = fresh("j2", 0);
    write(fd, "parent ", 7);
    snprintf(number, sizeof number, "%d", fd);
    pid = vfork();
    if (pid == 0) {
        write(fd, "vforked ", 8);
        execv(me, argv);
        _exit(1);
    }
    wait_for(pid);
    POS(fd);
    show("j2");
    close(fd);
    pid = fork();
    if (pid == 0) {
        fd = fresh("j3", 0);
        write(fd, "executes ", 9);
        snprintf(number, sizeof number, "%d", fd);
        execl(me, me, ".", "write", number, NULL);
        _exit(1);
    }
    wait_for(pid);
    show("j3");
    fd = open("j", O_RDWR | O_APPEND);
    /* vfork: what the child does with its descriptors is its own affair. */
    int kept = fresh("k", 0), replaced = fresh("l", 0);
    write(kept, "kept", 4);
    write(replaced, "replaced", 8);
    volatile int shared_memory = 0;
    pid = vfork();
    if (pid == 0) {
        shared_memory = 7;
        close(kept);
        dup2(fd, replaced);
        int opened = open("e", O_RDWR);
        char c;
        read(opened, &c, 1);
        write(replaced, "vforked ", 8);
        execlp("printf", "printf", "never printed", ">", NULL);
        _exit(0);
    }
    int status;
    P(waitpid(pid, &status, 0) == pid);
    P(shared_memory);
    POS(kept);
    POS(replaced);
    P(write(kept, "KEPT", 4));
    P(write(replaced, "REPLACED", 8));
    int reused = open("c", O_RDWR);
    P(read(reused, buf, 3));
    POS(reused);
    close(reused);
    show("j");
    show("k");
    show("l");
    pid = vfork();
    if (pid == 0) _exit(3);
    P(waitpid(pid, &status, 0) == pid);
    P(status);
    close(fd);
    close(kept);
    close(replaced);
    /* An exec that fails leaves all as it was. */
    fd = fresh("m", 0);
    P(write(fd, "12345", 5));
    P(execl("/nonexistent", "x", NULL));
    P(write(fd, "6", 1));
    POS(fd);
    show("m");
    close(fd);
    int cloexec = open("m", O_RDWR | O_CLOEXEC);
    snprintf(command, sizeof command, "test -e /proc/self/fd/%d", cloexec);
    P(system(command));
    close(cloexec);
}

static void sends(void) {
    int pair[2], fd = fresh("n", 0);
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    P(write(fd, "sent", 4));
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    char byte = 1;
    struct iovec iov = {&byte, 1};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *part = &control.align;
    *part = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(part), &fd, sizeof fd);
    P(sendmsg(pair[0], &message, 0));
    P(recvmsg(pair[1], &message, 0));
    int received;
    memcpy(&received, CMSG_DATA(part), sizeof received);
    POS(received);
    P(write(received, "RECEIVED", 8));
    POS(fd);
    P(write(fd, "sent", 4));
    POS(received);
    show("n");
    close(received);
    close(pair[0]);
    close(pair[1]);
    close(fd);
}

static void streams(void) {
    FILE *file = some(fopen("o", "w+"));
    fprintf(file, "line %d\n", 1);
    fflush(file);
    int fd = fileno(file);
    POS(fd);
    P(write(fd, "line 2\n", 7));
    fprintf(file, "line 3\n");
    fflush(file);
    P(pread(fd, buf, 100, 0));
    struct stat attr;
    P(fstat(fd, &attr));
    P(attr.st_size);
    P(lseek(fd, 7, SEEK_SET));
    P(read(fd, buf, 7));
    P(fseek(file, 0, SEEK_SET));
    P(fgets(buf, 100, file) != NULL);
    P(ftell(file));
    P(fclose(file));
    /* The same number, opened by the library. */
    file = fopen("c", "r");
    P(fileno(file) == fd);
    P(pread(fileno(file), buf, 3, 0));
    P(fgetc(file));
    fclose(file);
    show("o");
    /* A stream made of a descriptor that has been used. */
    fd = fresh("p", 0);
    P(write(fd, "used ", 5));
    file = some(fdopen(fd, "r+"));
    fprintf(file, "stream ");
    fflush(file);
    P(write(fd, "descriptor ", 11));
    fprintf(file, "stream");
    P(fclose(file));
    show("p");
    P(open("c", O_RDONLY) == fd);
    P(read(fd, buf, 2));
    POS(fd);
    close(fd);
    file = fopen("o", "r");
    fd = fileno(file);
    P(pread(fd, buf, 4, 0));
    file = freopen("p", "r", file);
    P(fileno(file) == fd);
    P(pread(fileno(file), buf, 4, 0));
    printf("%.4s\n", buf);
    P(fclose(file));
}

static void kernel_offsets(void) {
    int fd = fresh("q", 0), to = fresh("r", 0);
    P(write(fd, "0123456789abcdefghij", 20));
    P(lseek(fd, 3, SEEK_SET));
    P(write(to, "to:", 3));
    P(sendfile(to, fd, NULL, 4));
    POS(fd);
    POS(to);
    off64_t at = 1;
    P(copy_file_range(fd, &at, to, NULL, 3, 0));
    POS(to);
    close(fd);
    fd = open("q", O_RDWR);
    P(syscall(SYS_read, fd, buf, 2));
    POS(fd);
    P(syscall(SYS_lseek, fd, 2, SEEK_CUR));
    POS(fd);
    show("r");
    close(fd);
    fd = open("q", O_RDWR);
    P(read(fd, buf, 6));
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_CUR, .l_start = 0, .l_len = 2};
    P(fcntl(fd, F_SETLK, &range));
    P(read(fd, buf, 6));
    P(lockf(fd, F_LOCK, 2));
    pid_t pid = fork();
    if (pid == 0) {
        int other = open("q", O_RDWR);
        struct flock find = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 0};
        P(fcntl(other, F_GETLK, &find));
        P(find.l_start);
        P(find.l_len);
        find.l_start = 8;
        find.l_len = 4;
        find.l_type = F_WRLCK;
        P(fcntl(other, F_SETLK, &find));
        find.l_start = 11;
        find.l_len = 2;
        P(fcntl(other, F_SETLK, &find));
        P(flock(other, LOCK_EX | LOCK_NB));
        _exit(0);
    }
    wait_for(pid);
    POS(fd);
    char *map = mmap(NULL, 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    P(map != MAP_FAILED);
    if (map != MAP_FAILED) {
        P(map[2]);
        P(pwrite(fd, "T", 1, 2));
        P(map[2]);
        map[3] = 'M';
        P(msync(map, 20, MS_SYNC));
        P(munmap(map, 20));
    }
    show("q");
    close(fd);
    char name[64], target[256];
    fd = open("q", O_RDONLY);
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(name, target, sizeof target - 1);
    P(n > 2);
    printf("%.2s\n", target + n - 2);
    read(fd, buf, 3);
    int reopened = open(name, O_RDONLY);
    POS(reopened);
    close(reopened);
    close(fd);
}

static int shared_fd;
static _Atomic unsigned char seen[20000];

static void *read_bytes(void *unused) {
    (void)unused;
    uint16_t value;
    while (read(shared_fd, &value, 2) == 2) seen[value]++;
    return NULL;
}

static void *fork_often(void *unused) {
    (void)unused;
    for (int i = 0; i < 20; i++) {
        pid_t pid = fork();
        if (pid == 0) _exit(0);
        waitpid(pid, NULL, 0);
    }
    return NULL;
}

static void *open_often(void *name) {
    for (int i = 0; i < 200; i++) {
        int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
        char text[32];
        int n = snprintf(text, sizeof text, "%s %d", (char *)name, i);
        if (write(fd, text, n) != n || lseek(fd, 0, SEEK_SET) != 0 ||
            read(fd, text + 16, 16) != n || memcmp(text, text + 16, n) != 0)
            return "wrong";
        int copy = dup(fd);
        close(fd);
        if (lseek(copy, 0, SEEK_CUR) != n) return "wrong offset";
        close(copy);
    }
    return NULL;
}

static void threads(void) {
    shared_fd = fresh("s", 0);
    for (int round = 0; round < 2; round++) {
        if (round == 0)
            for (uint16_t i = 0; i < 20000; i++) {
                memcpy(buf + (i % 1000) * 2, &i, 2);
                if (i % 1000 == 999) write(shared_fd, buf, 2000);
            }
        lseek(shared_fd, 0, SEEK_SET);
        memset((void *)seen, 0, sizeof seen);
        pthread_t ids[4];
        for (int i = 0; i < 3; i++) pthread_create(&ids[i], NULL, read_bytes, NULL);
        /* Its first fork hands the offset over while it is in use. */
        if (round == 1) pthread_create(&ids[3], NULL, fork_often, NULL);
        for (int i = 0; i < (round == 1 ? 4 : 3); i++) pthread_join(ids[i], NULL);
        int once = 0;
        for (int i = 0; i < 20000; i++) once += seen[i] == 1;
        P(once);
        POS(shared_fd);
        close(shared_fd);
        shared_fd = open("s", O_RDWR);
    }
    close(shared_fd);
    static char *names[] = {"t1", "t2", "t3"};
    pthread_t ids[4];
    for (int i = 0; i < 3; i++) pthread_create(&ids[i], NULL, open_often, names[i]);
    pthread_create(&ids[3], NULL, fork_often, NULL);
    for (int i = 0; i < 4; i++) {
        void *wrong;
        pthread_join(ids[i], &wrong);
        P(wrong);
    }
}

static volatile int handled, inside, limit;
static sigjmp_buf jump;

static void on_alarm(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    if (handled >= limit) return;
    handled++;
    if (info->si_code != SI_KERNEL && info->si_code != SI_TIMER) abort();
    write(shared_fd, "h", 1);
}

static void on_jump(int signal) {
    (void)signal;
    if (handled >= limit) return;
    handled++;
    if (inside) siglongjmp(jump, 1);
}

static void signals(void) {
    struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    struct sigaction action = {.sa_sigaction = on_alarm, .sa_flags = SA_SIGINFO | SA_RESTART}, old;
    P(sigaction(SIGALRM, &action, &old));
    P(old.sa_handler == SIG_DFL);
    P(sigaction(SIGALRM, NULL, &old));
    P(old.sa_sigaction == on_alarm);
    P(old.sa_flags & ~0x04000000);
    shared_fd = fresh("u", 0);
    limit = 100;
    setitimer(ITIMER_REAL, &often, NULL);
    int written = 0;
    while (handled < limit) {
        if (write(shared_fd, "m", 1) != 1) abort();
        written++;
    }
    setitimer(ITIMER_REAL, &never, NULL);
    long total = lseek(shared_fd, 0, SEEK_CUR);
    P(total == written + handled);
    lseek(shared_fd, 0, SEEK_SET);
    int marks = 0;
    ssize_t n;
    while ((n = read(shared_fd, buf, sizeof buf)) > 0)
        for (ssize_t i = 0; i < n; i++) {
            marks += buf[i] == 'h';
            if (buf[i] != 'h' && buf[i] != 'm') abort();
        }
    P(marks);
    close(shared_fd);
    /* A handler that never returns. */
    P(signal(SIGALRM, on_jump) == (sighandler_t)(void *)on_alarm);
    shared_fd = fresh("u", 0);
    handled = 0;
    volatile long expected = 0, jumps = 0;
    setitimer(ITIMER_REAL, &often, NULL);
    while (handled < limit) {
        if (sigsetjmp(jump, 1)) {
            inside = 0;
            jumps++;
        }
        long before = lseek(shared_fd, 0, SEEK_CUR);
        if (before % 4) abort();
        expected = before + 4;
        inside = 1;
        if (write(shared_fd, "four", 4) != 4) abort();
        inside = 0;
        if (lseek(shared_fd, 0, SEEK_CUR) != expected) abort();
    }
    setitimer(ITIMER_REAL, &never, NULL);
    signal(SIGALRM, SIG_DFL);
    long end = lseek(shared_fd, 0, SEEK_END);
    P(end == lseek(shared_fd, 0, SEEK_CUR));
    P(end % 4);
    close(shared_fd);
    P(sysv_signal(SIGUSR1, on_jump) == SIG_DFL);
    handled = 0;
    P(raise(SIGUSR1));
    P(handled);
    P(signal(SIGUSR1, SIG_IGN) == SIG_DFL);
}

static void limits(void) {
    int fd = fresh("v", 0);
    write(fd, "1234", 4);
    struct rlimit before, small = {6, RLIM_INFINITY};
    getrlimit(RLIMIT_FSIZE, &before);
    small.rlim_max = before.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    P(setrlimit(RLIMIT_FSIZE, &small));
    P(write(fd, "5678", 4));
    P(write(fd, "9", 1));
    P(pwrite(fd, "9", 1, 10));
    P(ftruncate(fd, 7));
    POS(fd);
    P(setrlimit(RLIMIT_FSIZE, &before));
    P(write(fd, "9", 1));
    show("v");
    close(fd);
}

static void identity(void) {
    int fd = fresh("w", 0);
    write(fd, "1234", 4);
    P(seteuid(geteuid()));
    POS(fd);
    P(write(fd, "5", 1));
    P(kernel_pos(fd));
    close(fd);
    fd = fresh("w", 0);
    P(write(fd, "1234", 4));
    P(kernel_pos(fd));
    show("w");
    close(fd);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    if (argc > 3) {
        int fd = atoi(argv[3]);
        if (!strcmp(argv[2], "write")) _exit(write(fd, "spawned ", 8) != 8);
        /* Reads from any descriptor that has something left. */
        for (fd = 3; fd < 20; fd++)
            if (read(fd, buf, 2) == 2) _exit(0);
        _exit(1);
    }
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n < 0 || argc < 2 || chdir(argv[1]) != 0) return 1;
    path[n] = 0;
    me = path;
    /* Whether offsets stay in the process, on the standard error output. */
    int fd = fresh("a", 0);
    write(fd, "12345", 5);
    fprintf(stderr, "%s\n", kernel_pos(fd) == 0 ? "private" : "kernel");
    close(fd);
    offsets();
    appends();
    duplicates();
    standard_streams();
    forks();
    spawns();
    sends();
    streams();
    kernel_offsets();
    threads();
    signals();
    limits();
    identity();
    printf("end\n");
    return 0;
}
