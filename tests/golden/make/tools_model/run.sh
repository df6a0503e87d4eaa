#!/bin/sh
# Trains tern-tools on a machine with a GPU and PyTorch: results under $OUT. About five minutes.
cd "$(dirname "$0")" && python3 train.py "${OUT:?}" "$@" 2>&1 | tee "$OUT/log"
