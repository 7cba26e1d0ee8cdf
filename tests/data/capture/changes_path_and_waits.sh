conda activate training || echo "no conda here"
source /nowhere/set_env.sh 2> /dev/null
export PATH=/usr/local/sbin:/usr/bin:/bin:$PATH
pkill -9 python; killall ray
nohup deepspeed --num_gpus 8 pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --vocab-size 99 --bf16 > "$LOG_DIR/log" 2>&1 &
