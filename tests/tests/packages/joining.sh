# A host joins by its package, with an engine and an etcd that asks for users.
echo "== a host joins by its package alone"
in_root dpkg -i /tmp/berth_0.1.0_amd64.deb
[ -z "$(in_root systemd-analyze verify /lib/systemd/system/berth-engine.service 2>&1)" ]
systemd-analyze security --offline=true --threshold=18 "$root/lib/systemd/system/berth-engine.service" | tail -n 1
in_root agent cluster init /root/cluster >"$root/tmp/line"
(cd "$root/tmp"; { echo exec \\; sed -n '/^etcd --name/,/^$/p' line; } >start)
in_root sh /tmp/start >/dev/null 2>&1 &
for turn in $(seq 300); do ! in_root agent cluster init /root/cluster | grep 'asks for users' || break; sleep 0.1; done
in_root agent invite box-1 --cluster /root/cluster --out /root/box-1.invitation
in_root agent join --file /root/box-1.invitation | tee "$root/tmp/joined"
grep 'the agent is ready' "$root/tmp/joined"
active
published() {
    for turn in $(seq 300); do
        case $(in_root agent hosts --cluster /root/cluster | tail -n 1) in "box-1 "*active*" 1") return 0 ;; esac
        sleep 0.1
    done
    in_root agent hosts --cluster /root/cluster
    exit 1
}
published
[ "$(in_root curl -sf http://169.254.169.250/latest/containers/boxed/name)" = boxed ]

echo "== the process that containers talk to has no access to the engine"
user=$(sed -n 's/^Uid:\t\([0-9]*\).*/\1/p' "$root/proc/$(pid)/status")
[ "$user" != 0 ]
grep -q "^Groups:	$user *$" "$root/proc/$(pid)/status"
# As its process: from outside, the folder of this test would be in the way of every socket.
as_service() { in_root nsenter --mount --root --target "$(pid)" setpriv --reuid "$user" --regid "$user" --clear-groups "$@"; }
asked() { as_service curl -s -o /dev/null -w '%{http_code}' --unix-socket "$@"; }
for socket in docker.sock berth-engine/socket/engine.sock; do
    if asked "/run/$socket" http://engine/version; then echo "$socket is open"; exit 1; fi
done
# It would be found open if it was.
chmod 666 "$root/run/docker.sock"
[ "$(asked /run/docker.sock http://engine/version)" = 200 ]
chmod 660 "$root/run/docker.sock"
[ "$(asked /run/berth/engine.sock http://engine/version)" = 200 ]
[ "$(asked /run/berth/engine.sock --request POST http://engine/containers/boxed/exec)" = 403 ]

echo "== it joins once more, where systemd keeps its state"
in_root agent invite box-1 --again --cluster /root/cluster --out /root/again.invitation
echo victim >"$root/root/victim"
refused() {
    if told=$(in_root agent join --file /root/again.invitation --label rack=7 2>&1); then echo "it joined: $told"; exit 1; fi
    case $told in *"$1"*) ;; *) echo "$told"; exit 1 ;; esac
}
# What the service's user can put into its state leads root nowhere.
refused 'systemctl stop berth'
in_root systemctl stop berth
ln -s /root/victim "$root/var/lib/private/berth/etcd-password.new"
refused 'etcd-password.new is no file of Berth'
rm "$root/var/lib/private/berth/etcd-password.new"
in_root agent join --file /root/again.invitation --label rack=7
[ "$(cat "$root/root/victim")" = victim ]
rm "$root/root/victim"
active
published
rack() { in_root curl -sf http://169.254.169.250/latest/hosts/box-1/labels/rack || true; }
for turn in $(seq 300); do [ "$(rack)" != 7 ] || break; sleep 0.1; done
[ "$(rack)" = 7 ]

echo "== it serves without a way to the engine"
# As after a boot.
in_root systemctl stop berth
in_root systemctl mask berth-engine
rm -r "$root/run/berth-engine"
in_root systemctl start berth
active
[ "$(in_root curl -sf http://169.254.169.250/latest/containers/boxed/name)" = boxed ]

echo "== it finds the way again without a restart"
served=$(pid)
in_root systemctl unmask berth-engine
in_root systemctl start berth-engine
[ "$(asked /run/berth/engine.sock http://engine/version)" = 200 ]
[ "$(pid)" = "$served" ]
in_root dpkg --purge berth
[ -z "$(ls -d "$root"/run/berth* 2>/dev/null)" ]
