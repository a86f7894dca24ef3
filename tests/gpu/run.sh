#!/usr/bin/env bash
# On a machine with GPUs, from the root of the repository: builds the package, looks at the machine, runs the tests
# of this folder and measures. Each part has its own time limit and log; one that fails does not stop the next.
#
#   tests/gpu/run.sh [--bundle DIR] [--logs DIR] [PART[=SECONDS]...] [-- PYTEST ARGUMENTS]
#
# Parts: doctor tests bench (all of them by default); the build comes first in any case. With a bundle
# (`./dev gpu-bundle`; build/gpu-bundle is found by itself) nothing is fetched and nothing outside of build/ is
# written: wheels and package go to build/gpu-site, for the python3 of the machine. Without one ./dev prepares .venv.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
ROOT=$PWD
SITE=$ROOT/build/gpu-site PREFIX=$ROOT/build/gpu-prefix
BUNDLE=build/gpu-bundle LOGS=build/gpu-logs
PYTHON=${PYTHON:-python3}
declare -A LIMIT=([build]=300 [doctor]=120 [tests]=900 [bench]=600)

say() { printf '== %s\n' "$*"; }
die() { printf '%s\n' "$*" >&2; exit 1; }

parts=() arguments=()
while (($# > 0)); do
    case $1 in
        --bundle) BUNDLE=$2; shift ;;
        --logs) LOGS=$2; shift ;;
        --) shift; arguments=("$@"); break ;;
        *=*)
            [[ -v LIMIT[${1%%=*}] && ${1#*=} =~ ^[0-9]+$ ]] || die "$1: parts are ${!LIMIT[*]}, limits are seconds"
            LIMIT[${1%%=*}]=${1#*=}
            [[ ${1%%=*} == build ]] || parts+=("${1%%=*}")
            ;;
        build) ;;
        *)
            [[ -v LIMIT[$1] ]] || die "$1: parts are ${!LIMIT[*]}"
            parts+=("$1")
            ;;
    esac
    shift
done
((${#parts[@]} > 0)) || parts=(doctor tests bench)
targets=(tests/gpu)
for argument in "${arguments[@]}"; do
    [[ $argument != tests/* ]] || targets=()  # chosen by whoever calls
done
mkdir -p "$LOGS"

# Runs a command under the limit of its part, into a log.
limited() {
    local part=$1 log=$LOGS/$2
    shift 2
    # As by Ctrl-C: pytest then still says how far it came.
    timeout --signal=INT --kill-after=15 "${LIMIT[$part]}" "$@" >>"$log" 2>&1
}

# Everything from the bundle. A second run with the same sources does nothing.
# shellcheck disable=SC2329  # run by limited, in a shell of its own
build_from_bundle() {
    local key python hint
    python=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || return 1
    [[ $python == "$(<"$BUNDLE/python")" ]] ||
        die "The bundle is for Python $(<"$BUNDLE/python"), $PYTHON is $python: ./dev gpu-bundle --python $python"
    key=$(find "$BUNDLE" CMakeLists.txt pyproject.toml cmake kernel magics runtime serverless_gpu share -type f -print0 |
        sort -z | xargs -0 sha256sum | sha256sum)
    [[ -f $SITE/.stamp && $(<"$SITE/.stamp") == "$key" ]] && return 0
    rm -rf "$SITE" "$PREFIX"
    mkdir -p "$SITE" "$PREFIX"
    tar -xzf "$BUNDLE/prefix.tar.gz" -C "$PREFIX"
    "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$SITE" "$BUNDLE"/*.whl || return 1
    # The headers of the bundle come first: nlohmann-json's version is part of the names in libxeus.a.
    hint="-isystem $PREFIX/include -isystem $PREFIX/include/x86_64-linux-gnu"
    PYTHONPATH=$SITE CXXFLAGS="$hint ${CXXFLAGS:-}" CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) CMAKE_ARGS="-DSGPU_WERROR=OFF \
-DCMAKE_PREFIX_PATH=$PREFIX -DCMAKE_LIBRARY_PATH=$PREFIX/lib/x86_64-linux-gnu -DOPENSSL_ROOT_DIR=$PREFIX \
-DCMAKE_INCLUDE_PATH=$PREFIX/include -Dxeus_DIR=$PREFIX/lib/x86_64-linux-gnu/cmake/xeus \
-Dnlohmann_json_DIR=$PREFIX/share/cmake/nlohmann_json" \
        "$PYTHON" -m pip install -v --no-index --no-deps --no-build-isolation --no-cache-dir --upgrade --target "$SITE" . ||
        return 1
    printf '%s\n' "$key" >"$SITE/.stamp"
}

export -f build_from_bundle die
export SITE PREFIX BUNDLE PYTHON

say "build"
: >"$LOGS/build.log"
began=$SECONDS
if [[ -f $BUNDLE/python ]]; then
    limited build build.log bash -uo pipefail -c build_from_bundle
    built=$?
    # The package of the site and not the sources, which have no extension modules.
    export PYTHONSAFEPATH=1 PYTHONPATH=$SITE:$ROOT JUPYTER_PATH=$SITE/share/jupyter PATH=$SITE/bin:$PATH
else
    limited build build.log ./dev build lab test
    built=$?
    PYTHON=$ROOT/.venv/bin/python PATH=$ROOT/.venv/bin:$PATH
fi
if ((built != 0)); then
    tail -n 40 "$LOGS/build.log"
    die "The build failed ($built). All of its output is in $LOGS/build.log."
fi
say "built in $((SECONDS - began)) s"
"$PYTHON" -c 'import sys, torch; print("Python", sys.version.split()[0], "torch", torch.__version__, "CUDA", torch.version.cuda)'

failed=0
for part in "${parts[@]}"; do
    began=$SECONDS
    say "$part"
    : >"$LOGS/$part.log"
    case $part in
        doctor)
            limited doctor doctor.log serverless-gpu doctor
            ;;
        tests)
            limited tests tests.log "$PYTHON" -m pytest -p no:cacheprovider "${targets[@]}" -ra --tb=short \
                --durations=0 --junitxml="$LOGS/tests.xml" "${arguments[@]}"
            ;;
        bench)
            PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$ROOT/bench limited bench bench.log "$PYTHON" bench/run.py --only gpu --json "$LOGS/bench.json"
            ;;
    esac
    code=$?
    ((code == 0)) || failed=1
    tail -n 150 "$LOGS/$part.log"
    say "$part: exit $code after $((SECONDS - began)) s"
done
exit "$failed"
