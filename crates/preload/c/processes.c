/* Calls that make processes, replace them, or change who they are. */
#define _GNU_SOURCE
#include "table.h"

#include <alloca.h>
#include <grp.h>
#include <sched.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

extern char **environ;

/* ---- new processes; fork(3) is told of by pthread_atfork(3) ---- */

#define AROUND(result, name, parameters, arguments)                                           \
    EXPORT result name parameters {                                                           \
        before_fork();                                                                        \
        result answer = REAL(name) arguments;                                                 \
        after_fork();                                                                         \
        return answer;                                                                        \
    }
AROUND(int, posix_spawn,
       (pid_t *restrict pid, const char *restrict path,
        const posix_spawn_file_actions_t *restrict actions,
        const posix_spawnattr_t *restrict attributes, char *const argv[restrict],
        char *const envp[restrict]),
       (pid, path, actions, attributes, argv, envp))
AROUND(int, posix_spawnp,
       (pid_t *restrict pid, const char *restrict path,
        const posix_spawn_file_actions_t *restrict actions,
        const posix_spawnattr_t *restrict attributes, char *const argv[restrict],
        char *const envp[restrict]),
       (pid, path, actions, attributes, argv, envp))
AROUND(FILE *, popen, (const char *command, const char *mode), (command, mode))
AROUND(int, system, (const char *command), (command))

EXPORT pid_t _Fork(void) {
    before_copy();
    pid_t pid = REAL(_Fork)();
    if (pid == 0)
        after_copy_in_child();
    else
        after_copy();
    return pid;
}

/* A child in its parent's memory must leave the table alone, which is its parent's, and whose
 * descriptors are no longer its own. The thread that called waits meanwhile and has the same
 * thread-local storage, so that a mark there is seen by the child alone. */
#if defined(__x86_64__)
__attribute__((used)) static void *before_vfork(void *from) {
    if (self.vforked) {
        self.nested_fork = true;
        self.nested_return = from;
        return (void *)REAL(_Fork);
    }
    before_fork();
    self.vfork_return = from;
    self.vfork_depth = self.depth;
    return (void *)REAL(vfork);
}

__attribute__((used)) static void *after_vfork(long pid) {
    if (self.nested_fork) {
        self.nested_fork = false;
        return self.nested_return;
    }
    self.vforked = pid == 0;
    if (!self.vforked) {
        /* The child may have ended in the middle of a call. */
        self.depth = self.vfork_depth;
        after_fork();
    }
    return self.vfork_return;
}

/* It returns twice, and the child's calls overwrite the stack below its caller: what has to be
 * kept is kept elsewhere. */
__asm__(".pushsection .text\n"
        ".globl vfork\n"
        ".type vfork, @function\n"
        "vfork:\n"
        "    endbr64\n"
        "    movq (%rsp), %rdi\n"
        "    subq $8, %rsp\n"
        "    call before_vfork\n"
        "    addq $16, %rsp\n"
        "    call *%rax\n"
        "    pushq %rax\n"
        "    subq $8, %rsp\n"
        "    movslq %eax, %rdi\n"
        "    call after_vfork\n"
        "    movq %rax, %rdx\n"
        "    addq $8, %rsp\n"
        "    popq %rax\n"
        "    jmp *%rdx\n"
        ".size vfork, . - vfork\n"
        ".globl __vfork\n"
        ".set __vfork, vfork\n"
        ".popsection\n");
#else
EXPORT pid_t vfork(void) { return fork(); }
#endif

/* clone(2): threads share the table as they share descriptors; a child with a copy of our memory
 * is as after fork; for anything between the two we step aside. Whether it is such a child. */
static bool copies(uint64_t flags) {
    const uint64_t thread = CLONE_VM | CLONE_FILES | CLONE_SETTLS;
    if (!(flags & (CLONE_VM | CLONE_FILES))) return true;
    if ((flags & thread) != thread) disable();
    return false;
}

struct start {
    int (*function)(void *);
    void *argument;
};

static int start_as_copy(void *argument) {
    struct start start = *(struct start *)argument;
    after_copy_in_child();
    return start.function(start.argument);
}

EXPORT int clone(int (*function)(void *), void *stack, int flags, void *argument, ...) {
    va_list list;
    va_start(list, argument);
    void *parent = va_arg(list, void *), *tls = va_arg(list, void *), *child = va_arg(list, void *);
    va_end(list);
    if (copies(flags)) {
        struct start start = {function, argument};
        before_copy();
        int pid = REAL(clone)(start_as_copy, stack, flags, &start, parent, tls, child);
        after_copy();
        return pid;
    }
    before_fork();
    int pid = REAL(clone)(function, stack, flags, argument, parent, tls, child);
    after_fork();
    return pid;
}

/* ---- other programs ---- */

#define EXECUTES(name, parameters, arguments)                                                 \
    EXPORT int name parameters {                                                              \
        publish_all();                                                                        \
        return REAL(name) arguments;                                                          \
    }
EXECUTES(execve, (const char *path, char *const argv[], char *const envp[]), (path, argv, envp))
EXECUTES(execv, (const char *path, char *const argv[]), (path, argv))
EXECUTES(execvp, (const char *file, char *const argv[]), (file, argv))
EXECUTES(execvpe, (const char *file, char *const argv[], char *const envp[]), (file, argv, envp))
EXECUTES(fexecve, (int fd, char *const argv[], char *const envp[]), (fd, argv, envp))
EXECUTES(execveat,
         (int dirfd, const char *path, char *const argv[], char *const envp[], int flags),
         (dirfd, path, argv, envp, flags))

/* The arguments from `first` on as an array, and what follows them. */
#define COLLECT                                                                               \
    va_list list;                                                                             \
    size_t count = 1;                                                                         \
    va_start(list, first);                                                                    \
    while (va_arg(list, char *)) count++;                                                     \
    va_end(list);                                                                             \
    char **argv = alloca((count + 1) * sizeof *argv);                                         \
    argv[0] = (char *)first;                                                                  \
    va_start(list, first);                                                                    \
    for (size_t i = 1; i <= count; i++) argv[i] = va_arg(list, char *);

EXPORT int execl(const char *path, const char *first, ...) {
    COLLECT
    va_end(list);
    return execve(path, argv, environ);
}

EXPORT int execlp(const char *file, const char *first, ...) {
    COLLECT
    va_end(list);
    return execvp(file, argv);
}

EXPORT int execle(const char *path, const char *first, ...) {
    COLLECT
    char **envp = va_arg(list, char **);
    va_end(list);
    return execve(path, argv, envp);
}

/* ---- who the process is, and what it may do ---- */

/* The server knows the process by what it was when it connected. */
#define CHANGES(name, parameters, arguments)                                                  \
    EXPORT int name parameters {                                                              \
        if (connected()) disable();                                                           \
        return REAL(name) arguments;                                                          \
    }
CHANGES(setuid, (uid_t uid), (uid))
CHANGES(setgid, (gid_t gid), (gid))
CHANGES(seteuid, (uid_t uid), (uid))
CHANGES(setegid, (gid_t gid), (gid))
CHANGES(setreuid, (uid_t real, uid_t effective), (real, effective))
CHANGES(setregid, (gid_t real, gid_t effective), (real, effective))
CHANGES(setresuid, (uid_t real, uid_t effective, uid_t saved), (real, effective, saved))
CHANGES(setresgid, (gid_t real, gid_t effective, gid_t saved), (real, effective, saved))
CHANGES(setgroups, (size_t count, const gid_t *groups), (count, groups))
CHANGES(initgroups, (const char *user, gid_t group), (user, group))

/* Nor can it connect from elsewhere, or with descriptors that are a thread's own. */
EXPORT int unshare(int flags) {
    disable();
    return REAL(unshare)(flags);
}
EXPORT int setns(int fd, int kind) {
    disable();
    return REAL(setns)(fd, kind);
}

EXPORT int prctl(int option, ...) {
    va_list list;
    va_start(list, option);
    unsigned long a = va_arg(list, unsigned long), b = va_arg(list, unsigned long);
    unsigned long c = va_arg(list, unsigned long), d = va_arg(list, unsigned long);
    va_end(list);
    /* This library does not know which calls the filter lets through. */
    if (option == PR_SET_SECCOMP) disable();
    return REAL(prctl)(option, a, b, c, d);
}

#define LIMITS(name, kind)                                                                    \
    EXPORT int name(__rlimit_resource_t resource, const struct kind *limit) {                 \
        int result = REAL(name)(resource, limit);                                             \
        if (resource == RLIMIT_FSIZE) limits_changed();                                       \
        return result;                                                                        \
    }
LIMITS(setrlimit, rlimit)
LIMITS(setrlimit64, rlimit64)

/* ---- system calls by number ---- */

/* Those of the calls above that programs make past the names of the C library. */
EXPORT long syscall(long number, ...) {
    va_list list;
    va_start(list, number);
    long a[6];
    for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
    va_end(list);
    bool copy = false;
    switch (number) {
    case SYS_read: return read(a[0], (void *)a[1], a[2]);
    case SYS_write: return write(a[0], (void *)a[1], a[2]);
    case SYS_close: return close(a[0]);
    case SYS_dup: return dup(a[0]);
    case SYS_dup3: return dup3(a[0], a[1], a[2]);
    case SYS_close_range: return close_range(a[0], a[1], a[2]);
    case SYS_lseek:
    case SYS_readv:
    case SYS_writev:
    case SYS_preadv2:
    case SYS_pwritev2:
    case SYS_fcntl:
    case SYS_ioctl: share(a[0]); break;
    case SYS_sendfile:
        share(a[0]);
        share(a[1]);
        break;
    case SYS_splice:
    case SYS_copy_file_range:
        share(a[0]);
        share(a[2]);
        break;
    case SYS_sendmsg: return sendmsg(a[0], (void *)a[1], a[2]);
    case SYS_execve:
    case SYS_execveat: publish_all(); break;
    case SYS_clone: copy = copies(a[0]); break;
    case SYS_clone3: copy = copies(*(uint64_t *)a[0]); break;
#if defined(__x86_64__)
    case SYS_dup2: return dup2(a[0], a[1]);
    case SYS_fork: copy = true; break;
#endif
    case SYS_io_uring_setup:
    case SYS_unshare:
    case SYS_setns:
    case SYS_seccomp:
    case SYS_setuid:
    case SYS_setgid:
    case SYS_setreuid:
    case SYS_setregid:
    case SYS_setresuid:
    case SYS_setresgid:
    case SYS_setgroups: disable(); break;
    }
    if (copy) before_copy();
    long result = REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (copy && result == 0)
        after_copy_in_child();
    else if (copy)
        after_copy();
    return result;
}
