for tp in 1 2 4; do
  for recompute in "" "--recompute-activations"; do
    torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --vocab-size 99 --bf16 --tensor-model-parallel-size $tp $recompute
  done
done
