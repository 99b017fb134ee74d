/* A program that has forbidden itself all but files, by a seccomp filter that kills it at any other
 * call, as sandboxes do: no socket, no futex on others' memory, no ioctl. Prints `sealed`. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ALLOW(call)                                      \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

int main(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(openat), ALLOW(close), ALLOW(read), ALLOW(write), ALLOW(pread64), ALLOW(pwrite64),
        ALLOW(lseek), ALLOW(fsync), ALLOW(ftruncate), ALLOW(newfstatat), ALLOW(unlink),
        ALLOW(exit_group), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)};
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 1;
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 1;
    char buffer[64] = {0};
    struct stat stat;
    int fd = open("sealed", O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0 || write(fd, "sealed\nand more", 15) != 15 || pwrite(fd, "S", 1, 0) != 1) return 2;
    if (fsync(fd) || ftruncate(fd, 7) || fstat(fd, &stat) || stat.st_size != 7) return 3;
    if (pwrite(fd, "s", 1, 0) != 1 || lseek(fd, 0, SEEK_SET) != 0) return 4;
    if (read(fd, buffer, sizeof buffer) != 7 || memcmp(buffer, "sealed\n", 7)) return 5;
    if (unlink("sealed") || close(fd) || write(1, buffer, 7) != 7) return 6;
    _exit(0);
}
