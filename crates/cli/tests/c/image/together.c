/* Uses a directory that others use at the same time: `together DIRECTORY NAME COUNT`. Each makes
   files of its own, renames them into `all`, where it reads what it finds, and takes numbers, each
   of which only one can have. It says how many it got. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../../../libatoll/tests/c/check.h"

static char wanted[32768], found[32768];

/* The content of a file by its name. */
static size_t content(const char *name, char *out)
{
    unsigned sum = 5381;
    for (const char *at = name; *at; at++)
        sum = sum * 33 + (unsigned char)*at;
    size_t len = sum % 20000 + 1;
    for (size_t at = 0; at < len; at++)
        out[at] = (char)(sum + at * 7 + (at >> 8));
    return len;
}

/* Reads a file in `all`: it is whole as soon as it has its name. */
static void look(const char *name)
{
    int fd = open(name, O_RDONLY);
    CHECK(fd >= 0);
    ssize_t len = read(fd, found, sizeof found);
    CHECK(len == (ssize_t)content(name, wanted) && !memcmp(found, wanted, (size_t)len));
    CHECK(close(fd) == 0);
}

/* Reads the `turn`th of the others' files that are there. */
static void look_around(const char *own, long turn)
{
    DIR *all = opendir(".");
    CHECK(all != NULL);
    char name[64] = "";
    long seen = 0;
    for (struct dirent *entry; (entry = readdir(all)) != NULL;)
        if (strchr(entry->d_name, '-') && strncmp(entry->d_name, own, strlen(own)) &&
            seen++ <= turn % 16)
            snprintf(name, sizeof name, "%.60s", entry->d_name);
    CHECK(closedir(all) == 0);
    if (*name)
        look(name);
}

int main(int count, char **arguments)
{
    CHECK(count == 4 && chdir(arguments[1]) == 0);
    const char *own = arguments[2];
    char path[64], name[32];
    long files = atol(arguments[3]), taken = 0;
    CHECK(mkdir(own, 0755) == 0 && chdir("all") == 0);
    for (long number = 0; number < files; number++) {
        snprintf(name, sizeof name, "%s-%ld", own, number);
        snprintf(path, sizeof path, "../%s/made", own);
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
        size_t len = content(name, wanted);
        CHECK(fd >= 0);
        /* In two parts, the second first. */
        ssize_t half = (ssize_t)len / 2, rest = (ssize_t)len - half;
        CHECK(pwrite(fd, wanted + half, (size_t)rest, half) == rest);
        CHECK(pwrite(fd, wanted, (size_t)half, 0) == half);
        CHECK((number % 8 || fsync(fd) == 0) && close(fd) == 0);
        CHECK(rename(path, name) == 0);
        if (number % 5 == 4) {
            /* It has two names for a moment, then another than before. */
            snprintf(path, sizeof path, "../%s/%ld", own, number);
            CHECK(link(name, path) == 0 && unlink(name) == 0 && rename(path, name) == 0);
        }
        look(name);
        if (number % 4 == 0)
            look_around(own, number);
        snprintf(name, sizeof name, "number%ld", number);
        fd = open(name, O_WRONLY | O_CREAT | O_EXCL, 0644);
        CHECK(fd >= 0 || errno == EEXIST);
        if (fd >= 0) {
            taken++;
            CHECK(write(fd, own, strlen(own)) == (ssize_t)strlen(own) && close(fd) == 0);
        }
    }
    CHECK(rmdir("../all") == -1 && chdir("..") == 0);
    printf("taken %ld\n", taken);
    return 0;
}
