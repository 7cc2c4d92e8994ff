# A host joins by its package, with an engine and an etcd that asks for users.
echo "== an operator makes a cluster and a script that lets a host join"
in_root dpkg-deb -x /tmp/berth_0.1.0_amd64.deb /root/operator
operator() { in_root /root/operator/usr/bin/agent "$@"; }
operator cluster init /root/cluster >"$root/tmp/line"
(cd "$root/tmp"; { echo exec \\; sed -n '/^etcd --name/,/^$/p' line; } >start)
in_root sh /tmp/start >/dev/null 2>&1 &
for turn in $(seq 300); do ! operator cluster init /root/cluster | grep 'asks for users' || break; sleep 0.1; done
operator invite box-1 --role host,scheduler --cluster /root/cluster --out /root/box-1.sh --script sh --from http://127.0.0.1:8000/ \
    --package /tmp/berth_0.1.0_amd64.deb | tee "$root/tmp/invited"
grep '  sh box-1.sh' "$root/tmp/invited"

echo "== the script installs no other package"
mkdir "$root/tmp/files"
in_root python3 -m http.server --bind 127.0.0.1 --directory /tmp/files 8000 >/dev/null 2>&1 &
for turn in $(seq 300); do ! in_root curl -s http://127.0.0.1:8000/ >/dev/null || break; sleep 0.1; done
echo another >"$root/tmp/files/berth_0.1.0_amd64.deb"
if told=$(in_root sh /root/box-1.sh 2>&1); then echo "it joined: $told"; exit 1; fi
case $told in *'another SHA-256'*) ;; *) echo "$told"; exit 1 ;; esac
if in_root test -e /usr/bin/agent; then echo "it was installed"; exit 1; fi

echo "== a host joins by a script alone"
cp "$root/tmp/berth_0.1.0_amd64.deb" "$root/tmp/files"
# Pasted into a shell.
begun=$(date +%s)
in_root sh <"$root/root/box-1.sh" >"$root/tmp/joined" 2>&1 || { cat "$root/tmp/joined"; exit 1; }
echo "joined within $(($(date +%s) - begun)) s"
cat "$root/tmp/joined"
grep 'the agent is ready' "$root/tmp/joined"
[ "$(wc -l <"$root/tmp/joined")" -le 25 ]
[ -z "$(in_root systemd-analyze verify /lib/systemd/system/berth-engine.service 2>&1)" ]
systemd-analyze security --offline=true --threshold=18 "$root/lib/systemd/system/berth-engine.service" | tail -n 1
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

echo "== what is placed here is started by the engine behind the proxy"
in_root scheduler run --name placed box /bin/busybox sleep 1000
docker() { in_root curl -s --unix-socket /run/docker.sock "http://engine/$1"; }
case $(docker containers/placed/json) in *'"Running":true'*) ;; *) docker containers/placed/json; exit 1 ;; esac
in_root scheduler rm placed
[ "$(in_root curl -s -o /dev/null -w '%{http_code}' --unix-socket /run/docker.sock http://engine/containers/placed/json)" = 404 ]

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

echo "== a service of its own makes the network between hosts"
[ -z "$(in_root systemd-analyze verify /lib/systemd/system/berth-network.service 2>&1)" ]
systemd-analyze security --offline=true --threshold=22 "$root/lib/systemd/system/berth-network.service" | tail -n 1
in_root agent network init --cidr 10.61.0.0/16 --cluster /root/cluster
in_root agent network give box-1 --cluster /root/cluster
address=$(in_root ip -o -4 address show scope global | awk '{ sub("/.*", "", $4); print $4; exit }')
echo "BERTH_PUBLIC_IP=$address" >>"$root/etc/berth/agent.env"
networks() { docker networks/berth | grep -o '"Subnet":"10.61[^"]*"' || true; }
in_root systemctl enable --now berth-network
for turn in $(seq 300); do [ -z "$(networks)" ] || break; sleep 0.1; done
[ -n "$(networks)" ] || { in_root journalctl -u berth-network; exit 1; }
# The rules are made after the network.
for turn in $(seq 300); do ! in_root nft list table ip berth >/dev/null 2>&1 || break; sleep 0.1; done
in_root nft list table ip berth >/dev/null
[ "$(in_root systemctl is-active berth-network)" = active ]

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
echo BERTH_POLICY=/etc/berth/policy.json >"$root/etc/berth/engine.env"
in_root dpkg --purge berth
[ -z "$(networks)" ]
if in_root sh -c 'ip address; nft list ruleset' 2>/dev/null | grep -i berth; then exit 1; fi
[ ! -e "$root/etc/berth" ]
[ -z "$(ls -d "$root"/run/berth* 2>/dev/null)" ]
