/* Makes the fault that it is asked for, after it has said that it began. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char constant[] = "constant";
static unsigned char data[64] = {0xc3};

/* The same place, of which the compiler and its analyzer know nothing. */
static volatile char *hidden(const char *place)
{
    volatile char *out;
    __asm__("mov %1, %0" : "=r"(out) : "r"(place));
    return out;
}

static int deeper(int depth)
{
    volatile char room[4096];
    room[0] = (char)depth;
    return depth == 0 ? room[0] : deeper(depth + 1) + room[0];
}

int main(int count, char **arguments)
{
    const char *fault = count > 1 ? arguments[1] : "";
    if (write(1, "began\n", 6) != 6)
        return 1;
    if (!strcmp(fault, "null"))
        return *(volatile int *)16;
    if (!strcmp(fault, "nowhere"))
        return *(volatile int *)0x12345678000;
    if (!strcmp(fault, "read-only"))
        *hidden(constant) = 1;
    if (!strcmp(fault, "data"))
        ((void (*)(void))data)();
    if (!strcmp(fault, "stack"))
        return deeper(1);
    if (!strcmp(fault, "noncanonical"))
        return *(volatile int *)0x8000000000000000;
    if (!strcmp(fault, "divide")) {
        volatile int zero = (int)strlen(fault) - 6;
        return count / zero;
    }
    if (!strcmp(fault, "invalid"))
        __asm__ volatile("ud2");
    if (!strcmp(fault, "abort"))
        abort();
    if (!strcmp(fault, "image-text"))
        *(volatile char *)0x100000 = 1;
    if (!strcmp(fault, "image-data"))
        ((void (*)(void))(0x400000 - 4096))();
    if (!strcmp(fault, "unknown")) {
        int unknown = 0;
        for (int i = 0; i < 2; i++) {
            unknown += syscall(101, 0) == -1 && errno == ENOSYS;
            unknown += syscall(999, 0) == -1 && errno == ENOSYS;
        }
        printf("ENOSYS %d\n", unknown);
        return 0;
    }
    return 1;
}
