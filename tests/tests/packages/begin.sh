# What all steps begin with: they have the machine's root and the folder of what is written there.
root=$1 upper=$2 before=$2/../before
in_root() { chroot "$root" "$@"; }
# What changed on this machine, without what package managers and systemd keep for themselves.
changed() {
    (cd "$upper" && find . \( -type f -o -type l -o -type c \) ! -path './var/lib/dpkg/*' ! -path './var/log/*' \
        ! -path './var/cache/*' ! -path './var/lib/systemd/*' ! -path './etc/machine-id' ! -path './etc/.pwd.lock' | sort)
}
left() {
    # The state is whatever the agent wrote.
    found=$(changed | comm -13 "$before" - | sed 's:^./var/lib/private/berth/.*:STATE:' | uniq | paste -sd' ')
    found="$found$(ls -d "$root"/run/berth* 2>/dev/null || true)"
    [ "$found" = "$1" ] || { echo "left: $found"; echo "expected: $1"; exit 1; }
}
pid() { in_root systemctl show -P MainPID berth; }
active() { for turn in $(seq 300); do [ "$(in_root systemctl is-active berth)" != active ] || return 0; sleep 0.1; done; in_root systemctl show berth; exit 1; }
healthy() { for turn in $(seq 300); do ! in_root "$1/agent" healthcheck >/dev/null 2>&1 || return 0; sleep 0.1; done; exit 1; }
for turn in $(seq 300); do ! in_root systemctl is-active test.target >/dev/null 2>&1 || break; sleep 0.1; done
in_root systemctl is-active test.target
