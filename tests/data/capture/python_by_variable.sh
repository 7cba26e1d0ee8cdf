PYTHON=$(which python)
VERSION=$(python -c 'print("helper ran")')
echo "$VERSION"
python -m pip --version > /dev/null || exit 5
python - <<'END'
print("so did a here-document")
END
$PYTHON -u -m torch.distributed.launch --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --vocab-size 99 --bf16
python3 train.py --config 'a b.yaml'
