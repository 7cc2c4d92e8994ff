# The packages are installed, upgraded and removed.
changed >"$before"

echo "== a package is installed"
in_root dpkg -i /tmp/berth_0.1.0_amd64.deb
[ "$(in_root systemctl is-active berth)" = inactive ] && [ "$(in_root systemctl is-enabled berth)" = disabled ]
[ -z "$(in_root systemd-analyze verify /lib/systemd/system/berth.service 2>&1)" ]
# Without the drop-in of this test.
systemd-analyze security --offline=true --threshold=18 "$root/lib/systemd/system/berth.service" | tail -n 1
in_root systemctl enable --now berth
active

echo "== its settings and its limits hold"
cp "$root/tmp/cluster.yml" "$root/etc/berth/"
settings() { sed -i 's,^BERTH_SOURCE=.*,BERTH_SOURCE=file:/etc/berth/cluster.yml,' "$root/etc/berth/agent.env"; }
settings
in_root systemctl restart berth
active
healthy /usr/bin
name() { in_root curl -sf http://169.254.169.250/latest/containers/shop-web-1/name; }
[ "$(name)" = shop-web-1 ]
for line in 'NoNewPrivs:	1' 'Seccomp:	2' 'CapEff:	0000000000000400' 'CapBnd:	0000000000001400'; do
    grep -q "^$line$" "$root/proc/$(pid)/status" || { cat "$root/proc/$(pid)/status"; exit 1; }
done
grep -q '^Max core file size *0  *0 ' "$root/proc/$(pid)/limits"
if grep -q '^Uid:	0' "$root/proc/$(pid)/status"; then exit 1; fi

echo "== what was killed is back"
old=$(pid)
kill -KILL "$old"
for turn in $(seq 300); do case $(pid) in 0 | "$old") sleep 0.1 ;; *) break ;; esac; done
active

echo "== it starts again in place"
old=$(pid)
in_root systemctl reload berth
for turn in $(seq 300); do [ "$(pid)" = "$old" ] || break; sleep 0.1; done
[ "$(pid)" != "$old" ] && ! [ -e "$root/proc/$old" ]
active
healthy /usr/bin
[ "$(name)" = shop-web-1 ]
# Longer than the watchdog waits.
new=$(pid)
sleep 12
[ "$(pid)" = "$new" ] && [ "$(in_root systemctl show -P NRestarts berth)" = 1 ]

echo "== a new version takes its place"
old=$(pid)
in_root dpkg -i /tmp/berth_0.2.0_amd64.deb
active
healthy /usr/bin
[ "$(pid)" != "$old" ] && [ "$(name)" = shop-web-1 ]

echo "== the package is removed"
in_root dpkg --remove berth
left './etc/berth/agent.env ./etc/berth/cluster.yml ./var/lib/berth STATE'
in_root dpkg --purge berth
rm "$root/etc/berth/cluster.yml"
left ''

echo "== the archive is installed, again, and removed"
in_root tar -C /tmp -xzf /tmp/berth-0.1.0-linux-x86_64.tar.gz
in_root /tmp/berth-0.1.0-linux-x86_64/install
cp "$root/tmp/cluster.yml" "$root/etc/berth/"
settings
in_root systemctl enable --now berth
active
healthy /usr/local/bin
old=$(pid)
in_root /tmp/berth-0.1.0-linux-x86_64/install
active
[ "$(pid)" != "$old" ] && [ "$(name)" = shop-web-1 ]
in_root /tmp/berth-0.1.0-linux-x86_64/install --remove
left './etc/berth/agent.env ./etc/berth/cluster.yml ./var/lib/berth STATE'
