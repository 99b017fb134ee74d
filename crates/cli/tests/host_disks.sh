# Functions of the scripts in guests that have volumes on disks.

# The command, away from the terminal that the guest's port is.
atoll() {
    /bin/atoll "$@" > /tmp/stdout 2> /tmp/stderr < /dev/null && ended=0 || ended=$?
    cat /tmp/stdout /tmp/stderr
    return $ended
}

# Has a process use the volume $1, and ends it with SIGKILL: a directory $2-synced, which is synced,
# and $2-unsynced, which is not.
use_and_kill() {
    atoll mount "$1" /m
    mkdir "/m/$2-synced"
    sync "/m/$2-synced"
    mkdir "/m/$2-unsynced"
    kill -9 $(pidof atoll)
    umount -l /m
    while pidof atoll > /dev/null; do usleep 10000; done
}

SECTORS=8 # of a block

# The disk /dev/mapper/v over /dev/vda, on which block $2 is one of target $1: `error` fails reads
# and writes, `unwritable` writes alone; `linear` nothing.
disk_with() {
    disk=/dev/vda all=$(blockdev --getsz /dev/vda) from=$(($2 * SECTORS))
    till=$((from + SECTORS))
    {
        [ $from = 0 ] || echo "0 $from linear $disk 0"
        case $1 in
        linear) echo "$from $SECTORS linear $disk $from" ;;
        error) echo "$from $SECTORS error" ;;
        unwritable) echo "$from $SECTORS flakey $disk $from 0 3600 1 error_writes" ;;
        esac
        [ $till = $all ] || echo "$till $((all - till)) linear $disk $till"
    } > /tmp/table
    if [ -e /dev/mapper/v ]; then
        dmsetup suspend v
        dmsetup load v /tmp/table
        dmsetup resume v
    else
        dmsetup create --noudevsync v /tmp/table
        dmsetup mknodes v
    fi
    echo 3 > /proc/sys/vm/drop_caches
}

# Puts the content that was saved back on the disk.
restore() {
    disk_with linear 0
    dd if=/tmp/saved of=/dev/mapper/v bs=1M conv=fsync 2> /dev/null
}

# What fsck says, and its status at the end.
check() {
    atoll fsck "$@" /dev/mapper/v && status=0 || status=$?
    echo "status $status"
}
