/* What any program does with files, by the C library alone: makes a tree, writes, reads again,
 * maps, renames, lists, removes. Prints `files`. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void must(int holds, const char *what) {
    if (!holds) {
        perror(what);
        exit(1);
    }
}

enum { FILES = 50, LENGTH = 10000 };

int main(void) {
    char name[64], *data = malloc(LENGTH), *again = malloc(LENGTH);
    must(data && again && mkdir("d", 0755) == 0, "mkdir");
    for (int n = 0; n < FILES; n++) {
        memset(data, 'a' + n % 26, LENGTH);
        snprintf(name, sizeof name, "d/%d.new", n);
        FILE *file = fopen(name, "w+");
        must(file && fwrite(data, 1, LENGTH, file) == LENGTH, "fwrite");
        must(fseek(file, 0, SEEK_SET) == 0 && fread(again, 1, LENGTH, file) == LENGTH, "fread");
        must(memcmp(data, again, LENGTH) == 0 && fclose(file) == 0, "what was written");
        char to[64];
        snprintf(to, sizeof to, "d/%d", n);
        must(rename(name, to) == 0, "rename");
    }
    int fd = open("d/7", O_RDWR);
    must(fd >= 0, "open");
    char *map = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(map != MAP_FAILED && map[LENGTH - 1] == 'h', "mmap");
    map[5000] = '!';
    must(msync(map, LENGTH, MS_SYNC) == 0 && pread(fd, again, 1, 5000) == 1, "msync");
    must(again[0] == '!' && munmap(map, LENGTH) == 0 && close(fd) == 0, "what was mapped");
    int count = 0;
    DIR *dir = opendir("d");
    must(dir != NULL, "opendir");
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        must(unlinkat(dirfd(dir), entry->d_name, 0) == 0, "unlink");
        count++;
    }
    must(closedir(dir) == 0 && count == FILES && rmdir("d") == 0, "every file once");
    free(data);
    free(again);
    puts("files");
    return 0;
}
