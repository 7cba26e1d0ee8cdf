set -e
echo "Usage: $0 MODEL GPUS"
ls /nowhere/data
torchrun pretrain_gpt.py
