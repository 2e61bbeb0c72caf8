#!/bin/sh
# Print the Python that the project's environment is made with, or say what to install.
#
# PYTHON=... is taken as it is told.  Otherwise the plain `python3` when its version is one that the
# pins are tested with, then the tested versions by name, then whatever is new enough.
set -u

# fits CANDIDATE TEST: CANDIDATE runs, its version passes TEST, and it can make environments.
fits() {
    command -v "$1" >/dev/null 2>&1 || return 1
    "$1" -c "import sys; v = sys.version_info[:2]; assert $2; import ensurepip, venv; print(sys.executable)" \
        2>/dev/null
}

if [ -n "${PYTHON:-}" ]; then
    fits "$PYTHON" "v >= (3, 11)" && exit 0
    echo "penelope: PYTHON=$PYTHON is not a Python 3.11 or newer with its venv module; name another one" >&2
    exit 2
fi

for candidate in python3 python3.13 python3.12 python3.11 python; do
    fits "$candidate" "(3, 11) <= v <= (3, 13)" && exit 0
done
for candidate in python3 python3.14 python; do
    fits "$candidate" "v >= (3, 11)" && exit 0
done
echo "penelope: no Python 3.11 or newer with its venv module: install one" \
    "(Debian: apt install python3 python3-venv; macOS: brew install python@3.13) or set PYTHON=/path/to/python3" >&2
exit 2
