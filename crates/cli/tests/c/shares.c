/* Writes its argument and the end of the line to standard output, or with standard input a file,
 * takes the rest of it but for the last byte. */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int argc, char **argv) {
    struct stat in;
    char byte;
    if (argc < 2) return 1;
    if (argv[1][0] == 'x' && fstat(0, &in) == 0 && S_ISREG(in.st_mode))
        while (lseek(0, 0, SEEK_CUR) < in.st_size - 1)
            if (read(0, &byte, 1) != 1) return 2;
    size_t n = strlen(argv[1]);
    argv[1][n] = '\n';
    return write(1, argv[1], n + 1) != (ssize_t)n + 1;
}
