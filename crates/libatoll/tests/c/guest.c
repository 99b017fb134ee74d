/* A program that is the guest of a virtio-fs device. Usage: guest PLACE; it makes a file there. */
#include "atoll.h"
#include "check.h"

int main(int argc, char **argv) {
    struct atoll_options options = ATOLL_OPTIONS;
    static char data[100000], back[sizeof data];
    CHECK(argc == 2 && atoll_mount(argv[1], &options) == 0);
    memset(data, 'x', sizeof data);
    int fd = atoll_open("/made", O_CREAT | O_RDWR, 0644);
    CHECK(fd >= 0 && atoll_write(fd, data, sizeof data) == sizeof data && atoll_fsync(fd) == 0);
    CHECK(atoll_pread(fd, back, sizeof back, 0) == sizeof back);
    CHECK(memcmp(data, back, sizeof data) == 0);
    CHECK(atoll_close(fd) == 0 && atoll_mkdir("/d", 0755) == 0);
    CHECK(atoll_rename("/made", "/d/moved") == 0);
    FAILS(atoll_open("/made", O_RDONLY), ENOENT);
    CHECK(atoll_unmount() == 0);
    puts("made");
    return 0;
}
