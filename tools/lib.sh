# Shared by tools/test and tools/demo: the interpreter, .venv, installation, Java.
# Sourced by bash, never run. Functions print what they do on standard error and return non-zero
# with one clear line when something is missing.
# shellcheck shell=bash

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="${RAFTKV_VENV:-$ROOT/.venv}"
PYTHON_MIN_MINOR=11
JAVA_MIN=17
# pyspark's archive, the wheel built from it and the installed copy stand side by side for a moment.
DISK_MIB_MIN=3000
# A package index may pause under load; pip's own default of 15 s gives up too early.
export PIP_DEFAULT_TIMEOUT="${PIP_DEFAULT_TIMEOUT:-60}"
export PIP_DISABLE_PIP_VERSION_CHECK=1
# Hundreds of processes run from this checkout. Each would compile the modules that it imports anew,
# those of a node in two thirds of a second.
unset PYTHONDONTWRITEBYTECODE

if [ -t 2 ] && [ -z "${NO_COLOR:-}" ]; then
    _bold=$'\033[1m' _red=$'\033[31m' _off=$'\033[0m'
else
    _bold='' _red='' _off=''
fi

say() { printf '%s==>%s %s\n' "$_bold" "$_off" "$*" >&2; }
fail() {
    printf '%serror:%s %s\n' "$_red" "$_off" "$*" >&2
    return 1
}

# Print the first interpreter that is new enough. $PYTHON, when set, is the only candidate.
find_python() {
    local candidate
    local -a candidates=(python3.11 python3.12 python3.13 python3 python3.14 python)
    [ -n "${PYTHON:-}" ] && candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        if "$candidate" -c "import sys; sys.exit(sys.version_info < (3, $PYTHON_MIN_MINOR))" \
            >/dev/null 2>&1; then
            command -v "$candidate"
            return 0
        fi
    done
    fail "no Python 3.$PYTHON_MIN_MINOR or newer found (tried: ${candidates[*]})." \
        "Install one, or name it: PYTHON=/path/to/python3.11 $0"
}

# Make .venv, or keep the one that still works.
make_venv() {
    if [ -x "$VENV/bin/python" ] && "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
        return 0
    fi
    local python
    python="$(find_python)" || return 1
    if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        fail "$python cannot make virtual environments." \
            "On Debian or Ubuntu: apt-get install python3-venv"
        return 1
    fi
    say "making $VENV with $("$python" --version)"
    rm -rf "$VENV"
    "$python" -m venv "$VENV" || return 1
    # Current tools first: they build raftkv and pyspark without an isolated copy of themselves,
    # and an older pip cannot report progress to a program.
    pip_install --quiet --upgrade pip setuptools wheel
}

# pip install, three attempts: a network hiccup in 450 MB should not cost the whole run.
pip_install() {
    local attempt
    for attempt in 1 2 3; do
        "$VENV/bin/python" -m pip install "$@" && return 0
        [ "$attempt" = 3 ] && break
        say "pip failed; attempt $((attempt + 1)) of 3 follows"
        sleep $((attempt * 3))
    done
    fail "pip could not install: $*. See its message above; run $0 again to go on."
}

# One line that changes when an installation must be made anew: the metadata, the interpreter and
# the place of this checkout (an editable install points to it).
stamp() {
    {
        cat "$ROOT/setup.cfg" "$ROOT/pyproject.toml"
        "$VENV/bin/python" --version
        echo "$ROOT"
    } | "$VENV/bin/python" -c \
        'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'
}

installed() { [ "$(cat "$VENV/raftkv-$1.stamp" 2>/dev/null)" = "$(stamp)" ]; }
mark_installed() { stamp >"$VENV/raftkv-$1.stamp"; }

# This checkout and its base dependencies into .venv, editable, unless that is done already.
install_core() {
    installed core && return 0
    say "installing raftkv into $VENV"
    pip_install "$@" --no-build-isolation -e "$ROOT" || return 1
    mark_installed core
}

# install_extra NAME [PIP-OPTIONS...]: what the extra NAME of setup.cfg asks for. raftkv itself is
# not installed again: nodes may be running from it meanwhile.
install_extra() {
    local name="$1" requirement
    local -a requirements=()
    shift
    installed "$name" && return 0
    if [ "$name" = bench ]; then check_disk || return 1; fi
    while IFS= read -r requirement; do
        [ -n "$requirement" ] && requirements+=("$requirement")
    done < <("$VENV/bin/python" -c \
        'import configparser, sys
setup = configparser.ConfigParser()
setup.read(sys.argv[1], encoding="utf-8")
print(setup["options.extras_require"][sys.argv[2]])' "$ROOT/setup.cfg" "$name")
    say "installing the extra $name into $VENV"
    pip_install "$@" --no-build-isolation "${requirements[@]}" || return 1
    mark_installed "$name"
}

check_disk() {
    local free
    free="$(df -Pm "$(dirname "$VENV")" | awk 'NR == 2 { print $4 }')"
    if [ "$free" -lt "$DISK_MIB_MIN" ]; then
        fail "only $free MiB are free beside $VENV; Spark's installation needs $DISK_MIB_MIN." \
            "Free some space, or set RAFTKV_VENV to a folder on another disk."
    fi
}

# Print the major version of a java binary ("17"), nothing when it does not run.
java_version() {
    "$1" -version 2>&1 | sed -nE 's/.* version "(1\.)?([0-9]+).*/\2/p' | head -n 1
}

# Set JAVA_HOME to a runtime of at least version 17 that is installed; false when there is none.
find_java() {
    local binary version
    for binary in ${JAVA_HOME:+"$JAVA_HOME/bin/java"} "$(command -v java || true)" \
        /usr/lib/jvm/*/bin/java /Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java; do
        [ -x "$binary" ] || continue
        version="$(java_version "$binary")"
        if [ -n "$version" ] && [ "$version" -ge "$JAVA_MIN" ]; then
            # Cut-down runtimes, such as those that Python packages bundle, lack what Spark needs.
            "$binary" --add-modules=jdk.incubator.vector -version >/dev/null 2>&1 || continue
            # A link such as /usr/bin/java leads to the home; a launcher script does not.
            binary="$(readlink -f "$binary" 2>/dev/null || echo "$binary")"
            [ -d "${binary%/bin/java}/lib" ] && export JAVA_HOME="${binary%/bin/java}"
            return 0
        fi
    done
    return 1
}

# Java for Spark: an installed one, else Debian's, else one line saying what to install.
ensure_java() {
    find_java && return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        local package
        for package in openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless; do
            say "installing $package (Java for Spark) with apt-get"
            if apt_install "$package" && find_java; then
                return 0
            fi
        done
    fi
    fail "Spark needs Java $JAVA_MIN or newer and none was found." \
        "Install one (Debian/Ubuntu: apt-get install openjdk-17-jre-headless) or set JAVA_HOME."
}

apt_install() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -y -q --no-install-recommends "$1" >&2 && return 0
    apt-get update -q >&2 && apt-get install -y -q --no-install-recommends "$1" >&2
}
