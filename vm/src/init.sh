#!/bin/busybox sh
# The first program of a guest. It loads the modules, and then runs the scripts that come over the
# second serial port: a line with a length, and a script of so many bytes. What the script prints
# goes back, and behind it a byte 1, `end` and the status. The first port is the kernel's.
/bin/busybox --install -s /bin
# The first file system can be nobody's new root, as those of machines can.
if [ -z "${MOVED:-}" ]; then
    mkdir /new
    mount -t tmpfs root /new
    for part in /*; do
        [ "$part" = /new ] || cp -a "$part" /new
    done
    MOVED=yes exec switch_root /new /init
fi
export PATH=/bin:/sbin:/usr/bin:/usr/sbin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /tmp
while read -r module; do
    insmod "/modules/$module" || exit 1
done < /modules/order
exec < /dev/ttyS1 > /dev/ttyS1 2> /dev/ttyS1
# Bytes as they come, and no answer to them.
stty raw -echo
printf '\001ready\n'
while read -r length; do
    head -c "$length" > /tmp/.script
    status=0
    sh -eu /tmp/.script < /dev/null || status=$?
    printf '\001end %d\n' "$status"
done
