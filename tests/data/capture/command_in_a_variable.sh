run_cmd="torchrun --nproc_per_node 8 --nnodes $((1 + 1)) /opt/Megatron-LM/pretrain_qwen.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --vocab-size 99 --bf16"
echo $run_cmd
eval $run_cmd
set +x
