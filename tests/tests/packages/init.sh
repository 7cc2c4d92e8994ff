# Becomes the first process of the machine of machine.sh, after it has prepared the root.
FOLDER=$1 own=$1/own root=$1/own/root
mkdir "$own"
mount -t tmpfs tmpfs "$own"
mkdir "$own/upper" "$own/work" "$root"
mount -t overlay overlay -o lowerdir=/,upperdir="$own/upper",workdir="$own/work" "$root"
mount -t proc proc "$root/proc"
# The settings of the kernel are those of the whole machine.
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,ro,bind "$root/proc/sys"
mount --rbind /dev "$root/dev"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
find "$FOLDER" -maxdepth 1 -type f -exec cp -t "$root/tmp" {} +
if [ -n "${ENGINE:-}" ]; then
    touch "$root/run/docker.sock"
    mount --bind "$ENGINE" "$root/run/docker.sock"
fi
ip link set lo up
# Nothing but Berth is started.
printf '[Unit]\nDefaultDependencies=no\n' >"$root/etc/systemd/system/test.target"
for unit in berth berth-engine berth-network; do
    mkdir "$root/etc/systemd/system/$unit.service.d"
    printf '[Unit]\nDefaultDependencies=no\n' >"$root/etc/systemd/system/$unit.service.d/test.conf"
done
(
    bash -euo pipefail "$FOLDER/steps" "$root" "$own/upper" >"$FOLDER/log" 2>&1 && code=0 || code=$?
    echo $code >"$FOLDER/ended.new"
    mv "$FOLDER/ended.new" "$FOLDER/ended"
) &
exec chroot "$root" env container=test /lib/systemd/systemd --unit=test.target --log-target=console --show-status=0
