# Starts systemd in namespaces of its own, on a copy of this machine's root that is written to nowhere else, and runs
# $FOLDER/steps there; its output is printed. NAMESPACE names a network namespace to run in (with NET= empty), ENGINE the socket
# of a container engine.
groups=$(findmnt -n -t cgroup2 -o TARGET | head -n 1)
own=$groups$(sed -n 's/^0:://p' /proc/self/cgroup)
group=$groups/berth-test-$$
mkdir "$group"
echo $$ >"$group/cgroup.procs"
${NAMESPACE:+nsenter --net=/run/netns/$NAMESPACE} \
    unshare --mount --propagation private --pid --fork --kill-child --uts --ipc ${NET---net} --cgroup \
    bash -euc "$INIT" init "$FOLDER" </dev/null >"$FOLDER/init.log" 2>&1 &
init=$!
echo $$ >"$own/cgroup.procs"
while kill -0 $init 2>/dev/null && [ ! -e "$FOLDER/ended" ]; do sleep 0.1; done
kill -KILL $init 2>/dev/null
wait $init 2>/dev/null
for turn in $(seq 100); do find "$group" -depth -type d -exec rmdir {} + 2>/dev/null && break; sleep 0.1; done
cat "$FOLDER/init.log" "$FOLDER/log"
exit "$(cat "$FOLDER/ended")"
