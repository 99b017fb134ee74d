/* Forks, of every kind, in a program whose libraries use its files around fork(2) as well.
 *
 * The library (-DLIBRARY) is there before the interposer is ready, so that its handlers run
 * inside those of the interposer. Prints what each child found, and "end". */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef LIBRARY
static char path[4096];

/* A file that is new to the interposer, used until it would be worth a connection, and gone
 * again. */
static void use(void) {
    if (!path[0]) return;
    int fd = open(path, O_RDWR);
    char bytes[8];
    for (int i = 0; i < 20; i++)
        if (pread(fd, bytes, 8, 0) != 8 || pwrite(fd, bytes, 8, 0) != 8) abort();
    int other = dup(fd);
    close(fd);
    if (read(other, bytes, 8) != 8 || memcmp(bytes, "content\n", 8) != 0) abort();
    close(other);
}

void use_at(const char *file) { strcpy(path, file); }

__attribute__((constructor)) static void start(void) { pthread_atfork(use, use, use); }

#else
void use_at(const char *file);

static int fd;

/* The work of a child: as much as is needed to have a connection of its own. */
static int work(void *what) {
    char bytes[8];
    struct stat attr;
    for (int i = 0; i < 50; i++)
        if (pread(fd, bytes, 8, 0) != 8 || memcmp(bytes, "content\n", 8) != 0) return 1;
    if (fstat(fd, &attr) != 0 || attr.st_size != 8 || lseek(fd, 0, SEEK_CUR) != 4) return 2;
    printf("%s\n", (const char *)what);
    fflush(stdout);
    return 0;
}

static void ended(pid_t pid) {
    int status;
    if (pid < 0 || waitpid(pid, &status, __WALL) != pid || status != 0) {
        printf("a child ended with %x\n", status);
        exit(1);
    }
}

int main(int argc, char **argv) {
    (void)argc;
    char bytes[8];
    fd = open(argv[1], O_RDWR | O_CREAT, 0600);
    if (write(fd, "content\n", 8) != 8 || lseek(fd, 4, SEEK_SET) != 4) return 1;
    for (int i = 0; i < 50; i++)
        if (pread(fd, bytes, 8, 0) != 8) return 1;
    use_at(argv[1]);
    for (int round = 0; round < 3; round++) {
        pid_t pid = fork();
        if (pid == 0) _exit(work("fork"));
        ended(pid);
        pid = _Fork();
        if (pid == 0) _exit(work("_Fork"));
        ended(pid);
        pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (pid == 0) _exit(work("clone by number"));
        ended(pid);
        static char stack[1 << 20] __attribute__((aligned(16)));
        ended(clone(work, stack + sizeof stack, SIGCHLD, "clone"));
        if (work("parent") != 0) return 1;
    }
    puts("end");
    return 0;
}
#endif
