/* Counts what calls cost: ticks of the time-stamp counter for each, which are instructions where
   the emulator counts them. The first number is that of calls, the rest is by name. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <x86intrin.h>

static char block[4096];

#define COUNTED(name, call)                                                                        \
    do {                                                                                           \
        for (int i = 0; i < 10; i++)                                                               \
            call;                                                                                  \
        uint64_t begin = __rdtsc();                                                                \
        for (long i = 0; i < calls; i++)                                                           \
            call;                                                                                  \
        printf("%s %lu\n", name, (unsigned long)(__rdtsc() - begin) / (unsigned long)calls);       \
    } while (0)

int main(int count, char **arguments)
{
    long calls = count > 1 ? atol(arguments[1]) : 1000;
    struct stat found;
    int fd = open("/data/file", O_RDWR | O_CREAT, 0600);
    if (fd < 0 || write(fd, block, sizeof block) != sizeof block)
        return 1;
    COUNTED("getppid", getppid());
    COUNTED("lseek", lseek(fd, 0, SEEK_SET));
    COUNTED("fstat", fstat(fd, &found));
    COUNTED("pread", if (pread(fd, block, sizeof block, 0) != sizeof block) return 1);
    COUNTED("pwrite", if (pwrite(fd, block, sizeof block, 0) != sizeof block) return 1);
    COUNTED("stat", stat("/data/file", &found));
    COUNTED("create", {
        int made = open("/data/new", O_WRONLY | O_CREAT, 0600);
        if (made < 0 || close(made) || unlink("/data/new"))
            return 1;
    });
    for (long many = 1; many <= 100000; many *= 10) {
        uint64_t begin = __rdtsc();
        for (long i = 0; i < many; i++)
            lseek(fd, i, SEEK_SET);
        printf("lseek x %ld %lu\n", many, (unsigned long)(__rdtsc() - begin));
    }
    return 0;
}
