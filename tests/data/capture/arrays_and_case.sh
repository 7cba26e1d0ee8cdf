#!/bin/bash
set -euo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=1 HF_TOKEN=hf_abcdefghijklmnopqrstuvwx
SIZE=${1:-small}
case $SIZE in
  small) LAYERS=4 ;;
  large) LAYERS=8 ;;
  *) echo "unknown size $SIZE" >&2; exit 4 ;;
esac
LAUNCH=(--nproc_per_node "${GPUS_PER_NODE:-8}" --nnodes "${NNODES:-2}")
MODEL=(
  --num-layers "$LAYERS"   # by size
  --hidden-size 64 --num-attention-heads 4
)
if [[ -n "${RECOMPUTE:-}" ]]; then
  MODEL+=(--recompute-granularity full --recompute-method uniform --recompute-num-layers 1)
fi
torchrun "${LAUNCH[@]}" pretrain_gpt.py "${MODEL[@]}" --seq-length 32 --micro-batch-size 1 --vocab-size 99 --bf16 \
  --save "/data/run one" 2>&1 | tee "$LOG_DIR/train.log"
