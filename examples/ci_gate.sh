#!/bin/sh
# A CI gate: five optimizer steps of the real command, before the expensive training starts.
#
#     examples/ci_gate.sh                  passes
#     examples/ci_gate.sh --mean-of-means  fails with exit status 1 and the findings
set -eu
here=$(dirname "$0")
gradledger check --max-steps 5 --json verdict.json -- python "$here/plain_loop.py" "$@"
