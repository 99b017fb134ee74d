/* An ordinary program, which knows nothing of volumes. Usage: ordinary FOLDER */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHECK(condition)                                                                      \
    do {                                                                                      \
        if (!(condition)) {                                                                   \
            fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #condition,       \
                    strerror(errno));                                                         \
            exit(1);                                                                          \
        }                                                                                     \
    } while (0)

int main(int argc, char **argv) {
    CHECK(argc == 2);
    char path[256], line[64];
    snprintf(path, sizeof path, "%s/text", argv[1]);
    FILE *file = fopen(path, "w");
    CHECK(file);
    for (int i = 0; i < 10000; i++) fprintf(file, "line %d\n", i);
    CHECK(fclose(file) == 0);
    file = fopen(path, "r+");
    CHECK(file && fgets(line, sizeof line, file) && !strcmp(line, "line 0\n"));
    CHECK(fseek(file, -10, SEEK_END) == 0 && fgets(line, sizeof line, file));
    CHECK(!strcmp(line, "line 9999\n"));
    rewind(file);
    CHECK(fputs("LINE", file) >= 0 && fflush(file) == 0 && fclose(file) == 0);
    file = fopen(path, "a");
    CHECK(file && fputs("end\n", file) >= 0 && fclose(file) == 0);
    file = fopen(path, "wx");
    CHECK(!file && errno == EEXIST);

    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && pread(fd, line, 4, 0) == 4 && !memcmp(line, "LINE", 4));
    struct stat stat_buf;
    CHECK(fstat(fd, &stat_buf) == 0 && S_ISREG(stat_buf.st_mode));
    off_t size = stat_buf.st_size;
    CHECK(stat(path, &stat_buf) == 0 && stat_buf.st_size == size);
    CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == ENODEV);
    CHECK(dup2(fd, 77) == -1 && errno == EXDEV);
    CHECK(!isatty(fd) && close(fd) == 0);

    CHECK(chdir(argv[1]) == 0 && getcwd(line, sizeof line) && !strcmp(line, argv[1]));
    CHECK(mkdir("sub", 0755) == 0 && rename("text", "sub/text") == 0);
    CHECK(symlink("sub/text", "link") == 0 && access("link", R_OK) == 0);
    CHECK(link("/etc/passwd", "stolen") == -1 && errno == EXDEV);
    DIR *dir = opendir(".");
    CHECK(dir);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(dir)); count++) continue;
    CHECK(count == 4 && closedir(dir) == 0);
    CHECK((dir = opendir("/")) && readdir(dir) && closedir(dir) == 0);
    fd = open("sub", O_RDONLY | O_DIRECTORY);
    int inner = openat(fd, "text", O_RDWR);
    CHECK(inner >= 0 && ftruncate(inner, 3) == 0 && close(inner) == 0 && close(fd) == 0);
    CHECK(chdir("/") == 0 && open("link", O_RDONLY) == -1);

    /* The host's files are as they were. */
    fd = open("/dev/null", O_RDWR);
    CHECK(fd >= 0 && fd < 1000 && write(fd, "x", 1) == 1 && close(fd) == 0);
    puts("ordinary");
    return 0;
}
