/* Locks of every kind, and all that can end them. A process takes a lock and does something,
 * after which the lock is held or not, and then something by which it must go. Prints a line for
 * each that is wrong, and `end`.
 *
 *   locks DIRECTORY */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

enum kind { POSIX, FLOCK, DESCRIPTION, KINDS };
static const char *const names[] = {"POSIX", "flock", "open file description"};
static char path[400];

static void must(bool good, const char *what) {
    if (good) return;
    printf("%s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(1);
}

static int lock(enum kind kind, int fd, bool wait) {
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 10};
    switch (kind) {
    case POSIX: return fcntl(fd, wait ? F_SETLKW : F_SETLK, &all);
    case FLOCK: return flock(fd, wait ? LOCK_EX : LOCK_EX | LOCK_NB);
    default: return fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &all);
    }
}
static int open_it(int more) {
    int fd = open(path, O_RDWR | O_CREAT | more, 0600);
    must(fd >= 0, path);
    return fd;
}

/* ---- the holder: `first` after it has locked fd, `then` when it is told to go on ---- */

static int second;
static pid_t child;

static void nothing(int fd) { (void)fd; }
static void closes(int fd) { close(fd); }
static void unlocks(int fd) {
    struct flock all = {.l_type = F_UNLCK};
    flock(fd, LOCK_UN), fcntl(fd, F_SETLK, &all), fcntl(fd, F_OFD_SETLK, &all);
}
static void killed(int fd) { (void)fd, raise(SIGKILL); }
static void child_closes(int fd) {
    if ((child = fork()) == 0) close(fd), _exit(0);
    waitpid(child, NULL, 0);
}
static void child_exits(int fd) {
    (void)fd;
    if ((child = fork()) == 0) _exit(0);
    waitpid(child, NULL, 0);
}
static void child_keeps(int fd) {
    if ((child = fork()) == 0) pause();
    close(fd);
}
static void child_goes(int fd) { (void)fd, kill(child, SIGKILL), waitpid(child, NULL, 0); }
static void duplicates(int fd) { second = dup(fd), close(fd); }
static void closes_second(int fd) { (void)fd, close(second); }
static void opens_again(int fd) { (void)fd, close(open_it(0)); }
static void replaces(int fd) { dup2(2, fd); }
/* Becomes another program, which goes on with the same pipes. */
static int pipes[4];
static void becomes(int fd) {
    (void)fd;
    char ready[12], go[12];
    snprintf(ready, sizeof ready, "%d", pipes[1]), snprintf(go, sizeof go, "%d", pipes[2]);
    execl("/proc/self/exe", "locks", "wait", ready, go, NULL);
}
static void becomes_closing(int fd) { fcntl(fd, F_SETFD, FD_CLOEXEC), becomes(fd); }

static const struct {
    const char *name;
    void (*first)(int), (*then)(int);
    bool held[KINDS]; /* after the first */
} cases[] = {
    {"exit", nothing, nothing, {1, 1, 1}},
    {"kill", nothing, killed, {1, 1, 1}},
    {"close", nothing, closes, {1, 1, 1}},
    {"unlock", nothing, unlocks, {1, 1, 1}},
    {"close, then exit", closes, nothing, {0, 0, 0}},
    {"a child's close, then close", child_closes, closes, {1, 1, 1}},
    {"a child's close, then exit", child_closes, nothing, {1, 1, 1}},
    {"a child's close, then kill", child_closes, killed, {1, 1, 1}},
    {"a child's exit, then close", child_exits, closes, {1, 1, 1}},
    {"close before a child's end", child_keeps, child_goes, {0, 1, 1}},
    {"dup and close, then close", duplicates, closes_second, {0, 1, 1}},
    {"dup and close, then exit", duplicates, nothing, {0, 1, 1}},
    {"open and close, then close", opens_again, closes, {0, 1, 1}},
    {"dup2 over it", replaces, nothing, {0, 0, 0}},
    {"exec, then exit", becomes, nothing, {1, 1, 1}},
    {"exec that closes", becomes_closing, nothing, {0, 0, 0}},
};

static void hold(enum kind kind, unsigned c) {
    char byte;
    int fd;
    /* With its children. */
    setpgid(0, 0);
    fd = open_it(0);
    must(lock(kind, fd, false) == 0, "what nobody holds");
    cases[c].first(fd);
    must(write(pipes[1], "r", 1) == 1 && read(pipes[2], &byte, 1) == 1, "a pipe");
    cases[c].then(fd);
    /* A `then` that does not end the process must free the lock by itself. */
    if (cases[c].then != nothing) pause();
    _exit(0);
}

static void late(int signal) { (void)signal; }

int main(int argc, char **argv) {
    char byte;
    if (argc == 4)
        return write(atoi(argv[2]), "r", 1) != 1 || read(atoi(argv[3]), &byte, 1) != 1;
    snprintf(path, sizeof path, "%s/locked", argv[1]);
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = late}, NULL);
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, NULL, _IOLBF, 0);
    int wrong = 0;
    for (unsigned c = 0; c < sizeof cases / sizeof *cases; c++)
        for (enum kind kind = 0; kind < KINDS; kind++) {
            must(pipe(pipes) == 0 && pipe(pipes + 2) == 0, "pipe");
            pid_t holder = fork();
            if (holder == 0) hold(kind, c);
            must(read(pipes[0], &byte, 1) == 1, cases[c].name);
            /* The server may learn of a close a little later. */
            int fd = open_it(0), got = -1;
            for (int i = 0; i < (cases[c].held[kind] ? 1 : 400) && got < 0; i++) {
                if (i) usleep(5000);
                got = lock(kind, fd, false);
            }
            if ((got < 0) != cases[c].held[kind]) {
                printf("%s, %s: %s\n", cases[c].name, names[kind], got < 0 ? "held" : "not held");
                wrong++;
            }
            must(write(pipes[3], "g", 1) == 1, "a pipe");
            alarm(10);
            if (got < 0 && lock(kind, fd, true) < 0) {
                printf("%s, %s: not let go\n", cases[c].name, names[kind]);
                wrong++;
            }
            alarm(0);
            close(fd);
            for (int i = 0; i < 4; i++) close(pipes[i]);
            kill(-holder, SIGKILL);
            waitpid(holder, NULL, 0);
        }
    puts(wrong ? "wrong" : "end");
    return 0;
}
