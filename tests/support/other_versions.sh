#!/bin/sh
# other_versions.sh UV PYTHON DIRECTORY VERSION: a virtual environment as the lock file says, but with PySpark VERSION,
# or, for `oldest`, with the oldest of all that `pip install .[server,spark,otel,delta,iceberg]` may bring.
set -eu
uv=$1 python=$2 venv=$3 version=$4

"$uv" venv --quiet --allow-existing --python "$python" "$venv"
install() {
    "$uv" pip install --quiet --python "$venv" "$@"
}
install --requirement requirements-dev.lock
case $version in
# With what the tests need of gRPC in the versions of its oldest one: newer ones want a newer protobuf.
oldest)
    install --resolution lowest-direct --upgrade --editable '.[server,spark,otel,delta,iceberg]' \
        'grpcio-health-checking>=1.76' 'grpcio-status>=1.76'
    ;;
*) install --upgrade "pyspark==$version.*" && install --no-deps --editable . ;;
esac
"$venv/bin/python" -c 'import sys
from importlib.metadata import version
print("python", sys.version.split()[0], end="  ")
for each in ("pyspark", "pyarrow", "pandas", "numpy", "grpcio", "aiohttp"):
    print(each, version(each), end="  ")
print()'
