/* The checks of the tests in C, and how their children end. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define CHECK(condition)                                                                      \
    do {                                                                                      \
        if (!(condition)) {                                                                   \
            fprintf(stderr, "%s:%d: not so: %s (errno %d: %s)\n", __FILE__, __LINE__,         \
                    #condition, errno, strerror(errno));                                      \
            exit(1);                                                                          \
        }                                                                                     \
    } while (0)

/* The call fails with this errno. */
#define FAILS(call, number)                                                                   \
    do {                                                                                      \
        errno = 0;                                                                            \
        CHECK((long)(call) == -1);                                                            \
        CHECK(errno == (number));                                                             \
    } while (0)

/* Has this child end with its parent, and in ten minutes at the latest: a test that a check ends
 * leaves none that waits. */
static inline void end_with(pid_t parent) {
    CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    /* It may have ended before. */
    if (getppid() != parent) _exit(1);
    alarm(600);
}

#endif
