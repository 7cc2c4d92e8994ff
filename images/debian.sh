# Gets packages from Debian suites other than this machine's, without changing its package lists. Sourced by bash scripts.
# shellcheck shell=bash

# Cached between runs.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/berth

# Sets $mirror to the server from which this machine gets its packages, so that no server is named here.
find_mirror() {
    # shellcheck disable=SC1091,SC2016 # the file is the system's; the $(...) are apt's
    mirror=$(. /etc/os-release && apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT) $(CREATED_BY)' |
        awk -v suite="$VERSION_CODENAME" '$2 == suite && $3 == "main" && $4 == "Packages" { print $1; exit }')
    [ -n "$mirror" ]
}

# apt_of_suite SUITE PROGRAM ARGUMENTS...: runs apt-get or apt-cache with the package lists of a suite. Signatures are checked
# as usual. Call find_mirror first.
apt_of_suite() {
    local suite=$1 lists=$cache/apt/$1
    mkdir -p "$lists/lists/partial" "$lists/archives/partial"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$lists/sources.list"
    "$2" -q -o Dir::Etc::SourceList="$lists/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::State::Lists="$lists/lists" -o Dir::Cache="$lists" -o Acquire::Languages=none -o Acquire::Retries=3 \
        -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o APT::Sandbox::User=root "${@:3}"
}

# unpack_of_suite PACKAGE FOLDER SUITE...: downloads a package from the first suite that has it, and unpacks it.
unpack_of_suite() {
    local package=$1 folder=$2 suite work
    shift 2
    find_mirror || return 1
    work=$(mktemp -d)
    for suite; do
        apt_of_suite "$suite" apt-get update >/dev/null 2>&1 || continue
        (cd "$work" && apt_of_suite "$suite" apt-get download "$package") >/dev/null 2>&1 || continue
        mkdir -p "$folder.new"
        dpkg-deb --extract "$work/$package"_*.deb "$folder.new"
        rm -rf "$folder" "$work"
        # Renamed into place, so that an interrupted run leaves no incomplete package.
        mv "$folder.new" "$folder"
        return
    done
    rm -rf "$work"
    return 1
}
