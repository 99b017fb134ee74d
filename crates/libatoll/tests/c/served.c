/* Locks of a volume that a server serves. Usage: served SOCKET [held]; held: another process has
 * both locks of /lock. */
#define _GNU_SOURCE
#include "atoll.h"
#include "check.h"

#include <pthread.h>
#include <sys/file.h>
#include <sys/time.h>
#include <sys/wait.h>

static const char *place;

static void mount(void) {
    struct atoll_options options = ATOLL_OPTIONS;
    if (atoll_mount(place, &options) != 0) fprintf(stderr, "%s\n", atoll_error());
    CHECK(atoll_is_served() == 1);
}

static int set(int fd, int command, int type, off_t start, off_t len) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
    return atoll_fcntl(fd, command, &lock);
}

static int ours[2], theirs[2];

/* Each side does its steps in turn with the other's. */
static void tell(int *pipe) { CHECK(write(pipe[1], "x", 1) == 1); }

static void hear(int *pipe) {
    char byte;
    CHECK(read(pipe[0], &byte, 1) == 1);
}

static void handler(int signal) { (void)signal; }

static void *waiter(void *argument) {
    CHECK(atoll_flock(*(int *)argument, LOCK_EX) == 0);
    return NULL;
}

/* One waits for the other's byte while that waits for this one's: one of them is refused, and lets
 * go of its own, which the other one gets. Both let go of all in the end. */
static void circle(int fd, off_t other) {
    errno = 0;
    int result = set(fd, F_SETLKW, F_WRLCK, other, 1);
    CHECK(result == 0 || errno == EDEADLK);
    if (result != 0) printf("refused\n");
    fflush(stdout);
    CHECK(set(fd, F_SETLK, F_UNLCK, 0, 2) == 0);
}

static void first(void) {
    mount();
    int fd = atoll_open("/lock", O_RDWR | O_CREAT, 0600), second = atoll_open("/lock", O_RDWR);
    CHECK(set(fd, F_SETLK, F_WRLCK, 0, 10) == 0 && atoll_flock(fd, LOCK_EX) == 0);
    CHECK(set(second, F_OFD_SETLK, F_WRLCK, 100, 0) == 0);
    FAILS(set(fd, F_SETLK, F_RDLCK, 200, 1), EAGAIN);
    FAILS(atoll_fcntl(fd, F_SETFL, O_APPEND), EBUSY);
    tell(ours), hear(theirs);
    /* The other has waited and given up. It does not get the lock that it gave up. */
    CHECK(set(fd, F_SETLK, F_UNLCK, 0, 0) == 0 && set(fd, F_SETLK, F_WRLCK, 0, 10) == 0);
    /* The process's go with any descriptor, the descriptions' with theirs, before close returns. */
    CHECK(atoll_close(second) == 0);
    tell(ours), hear(theirs);
    CHECK(atoll_close(fd) == 0);
    tell(ours), hear(theirs);
    fd = atoll_open("/lock", O_RDWR);
    CHECK(set(fd, F_SETLKW, F_WRLCK, 0, 1) == 0);
    tell(ours), hear(theirs);
    circle(fd, 1);
    tell(ours), hear(theirs);
    CHECK(atoll_flock(fd, LOCK_EX) == 0 && set(fd, F_SETLK, F_WRLCK, 0, 0) == 0);
    CHECK(atoll_unmount() == 0);
    tell(ours);
}

static void other(int parent) {
    mount();
    hear(ours);
    int fd = atoll_open("/lock", O_RDWR);
    FAILS(set(fd, F_SETLK, F_RDLCK, 5, 1), EAGAIN);
    FAILS(set(fd, F_SETLK, F_WRLCK, 1000, 1), EAGAIN);
    CHECK(set(fd, F_SETLK, F_WRLCK, 50, 50) == 0);
    FAILS(atoll_flock(fd, LOCK_SH | LOCK_NB), EWOULDBLOCK);
    struct flock found = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 20};
    CHECK(atoll_fcntl(fd, F_GETLK, &found) == 0 && found.l_type == F_WRLCK);
    CHECK(found.l_start == 0 && found.l_len == 10 && found.l_pid == parent);
    signal(SIGALRM, handler);
    struct itimerval timer = {{0, 50000}, {0, 50000}};
    setitimer(ITIMER_REAL, &timer, NULL);
    FAILS(set(fd, F_SETLKW, F_WRLCK, 0, 1), EINTR);
    FAILS(atoll_flock(fd, LOCK_EX), EINTR);
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    tell(theirs), hear(ours);
    CHECK(set(fd, F_SETLK, F_WRLCK, 0, 0) == 0);
    FAILS(atoll_flock(fd, LOCK_EX | LOCK_NB), EWOULDBLOCK);
    tell(theirs), hear(ours);
    CHECK(atoll_flock(fd, LOCK_EX | LOCK_NB) == 0);
    /* While one thread waits others call, here to let it go on. */
    int second = atoll_open("/lock", O_RDWR);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, waiter, &second) == 0);
    CHECK(atoll_flock(fd, LOCK_UN) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(atoll_close(second) == 0);
    second = atoll_open("/lock", O_RDWR);
    CHECK(set(second, F_SETLK, F_WRLCK, 1, 1) == 0);
    tell(theirs), hear(ours);
    tell(theirs);
    circle(second, 0);
    hear(ours), tell(theirs);
    hear(ours);
    /* It has unmounted. */
    CHECK(set(fd, F_SETLK, F_WRLCK, 0, 0) == 0 && atoll_flock(fd, LOCK_EX | LOCK_NB) == 0);
    CHECK(atoll_unmount() == 0);
}

/* A process that is killed has no locks, though a child of it lives on. */
static void killed(void) {
    pid_t tester = getpid(), child, parent = fork();
    CHECK(parent >= 0);
    if (parent == 0) {
        end_with(tester);
        mount();
        int fd = atoll_open("/lock", O_RDWR);
        CHECK(set(fd, F_SETLK, F_WRLCK, 0, 0) == 0 && atoll_flock(fd, LOCK_EX) == 0);
        child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            /* It outlives its parent, which is killed. */
            alarm(600);
            for (;;) pause();
        }
        CHECK(write(ours[1], &child, sizeof child) == sizeof child);
        for (;;) pause();
    }
    CHECK(read(ours[0], &child, sizeof child) == sizeof child);
    mount();
    int fd = atoll_open("/lock", O_RDWR);
    FAILS(set(fd, F_SETLK, F_WRLCK, 0, 1), EAGAIN);
    CHECK(kill(parent, SIGKILL) == 0);
    CHECK(set(fd, F_SETLKW, F_WRLCK, 0, 1) == 0 && atoll_flock(fd, LOCK_EX) == 0);
    CHECK(kill(child, SIGKILL) == 0 && atoll_unmount() == 0);
}

int main(int argc, char **argv) {
    place = argv[1];
    if (argc > 2) {
        mount();
        int fd = atoll_open("/lock", O_RDWR);
        FAILS(set(fd, F_SETLK, F_RDLCK, 0, 1), EAGAIN);
        FAILS(atoll_flock(fd, LOCK_SH | LOCK_NB), EWOULDBLOCK);
        printf("held\n");
        return atoll_unmount();
    }
    CHECK(pipe(ours) == 0 && pipe(theirs) == 0);
    int parent = getpid(), status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        end_with(parent);
        other(parent);
        return 0;
    }
    first();
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    killed();
    printf("excluded\n");
    return 0;
}
