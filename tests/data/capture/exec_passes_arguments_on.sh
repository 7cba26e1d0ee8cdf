cd "$(dirname "$0")"
cd /
exec torchrun --nproc_per_node=8 pretrain_gpt.py "$@"
