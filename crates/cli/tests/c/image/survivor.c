/* Makes files until it is killed, and says each that has been made: `survivor DIRECTORY FIRST`.
   What was said has to be there afterwards: `survivor DIRECTORY FIRST UNTIL` looks. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The content of a file by its number: some take several blocks. */
static size_t content(long number, char *out)
{
    size_t len = (size_t)(number * 7919 % 20000) + 1;
    for (size_t at = 0; at < len; at++)
        out[at] = (char)('a' + (number + (long)at) % 26);
    return len;
}

static char wanted[32768], found[32768];

static int look(const char *name, long number)
{
    int fd = open(name, O_RDONLY);
    if (fd < 0)
        return printf("%s: %s\n", name, strerror(errno)), 1;
    ssize_t len = read(fd, found, sizeof found);
    size_t expected = content(number, wanted);
    close(fd);
    if (len != (ssize_t)expected || memcmp(found, wanted, expected))
        return printf("%s: %zd bytes, not %zu as written\n", name, len, expected), 1;
    return 0;
}

int main(int count, char **arguments)
{
    if (count < 3 || chdir(arguments[1]))
        return 2;
    char name[32], other[32], line[32];
    long number = atol(arguments[2]), until = count > 3 ? atol(arguments[3]) : -1;
    for (; until < 0 || number < until; number++) {
        snprintf(name, sizeof name, "f%ld", number);
        if (until >= 0) {
            /* Every fifth has gone again, every seventh was renamed. */
            if (number % 5 == 4) {
                struct stat gone;
                if (!stat(name, &gone))
                    return printf("%s is there again\n", name), 1;
                continue;
            }
            if (number % 7 == 3)
                snprintf(name, sizeof name, "renamed%ld", number);
            if (look(name, number))
                return 1;
            continue;
        }
        int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        size_t len = content(number, wanted);
        if (fd < 0 || write(fd, wanted, len) != (ssize_t)len || close(fd))
            return printf("%s: %s\n", name, strerror(errno)), 1;
        if (number % 5 == 4 && unlink(name))
            return 1;
        if (number % 5 != 4 && number % 7 == 3) {
            snprintf(other, sizeof other, "renamed%ld", number);
            if (rename(name, other))
                return 1;
        }
        int said = snprintf(line, sizeof line, "%ld\n", number);
        if (write(1, line, (size_t)said) != said)
            return 1;
    }
    puts("all there");
    return 0;
}
