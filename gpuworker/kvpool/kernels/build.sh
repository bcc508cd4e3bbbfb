#!/bin/sh
# Writes kernels.ptx, or the file that is named. clang-19 gives the same bytes
# wherever it runs.
set -eu
out=$(realpath "${1:-$(dirname "$0")/kernels.ptx}")
cd "$(dirname "$0")"
"${CLANG:-clang-19}" -x c++ -std=c++17 -target nvptx64-nvidia-cuda -march=sm_80 -Xclang -target-feature -Xclang +ptx78 \
  -O3 -ffreestanding -nostdinc -fno-exceptions -fno-rtti -fno-ident -S -o "$out" kernels.cu
