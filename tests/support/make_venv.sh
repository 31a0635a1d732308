#!/bin/sh
# make_venv.sh DIRECTORY: make a virtual environment with Python 3.11 or later.
# $PYTHON chooses the interpreter; otherwise the newest that is known to work is taken.
set -eu

works() { # has the version, and Debian's python3-venv beside it
    "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

for candidate in ${PYTHON:-python3.14 python3.13 python3.12 python3.11 python3}; do
    if works "$candidate"; then
        exec "$candidate" -m venv "$1"
    fi
done
echo "make: Python 3.11 or later with venv is needed (Debian: apt-get install python3 python3-venv), or name one: make PYTHON=/path/to/python" >&2
exit 1
