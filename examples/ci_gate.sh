#!/bin/sh
# A gate for CI: five optimizer steps of the real command, before hours of it are paid for.
#
#     examples/ci_gate.sh                  passes
#     examples/ci_gate.sh --mean-of-means  stops with exit status 1, and says why
set -eu
here=$(dirname "$0")
gradledger check --max-steps 5 --json verdict.json -- python "$here/plain_loop.py" "$@"
