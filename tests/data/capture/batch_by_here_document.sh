mkdir -p "$LOG_DIR"
JOB=$(sbatch --parsable --export=ALL,LAYERS=4 <<END
#!/bin/bash
#SBATCH --job-name=test
#SBATCH -N 4  # nodes
#SBATCH --ntasks-per-node=8
#SBATCH --gres=gpu:8
echo "on \$SLURM_NNODES nodes"
srun -l --container-image=x bash -c "cd / && python pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --vocab-size 99 --bf16 --exit-interval \$SLURM_NNODES"
END
)
echo "submitted $JOB"
sbatch -p batch --wrap "torchrun --nnodes \$SLURM_NNODES --nproc_per_node \$SLURM_GPUS_ON_NODE train.py --job $JOB" -N2 --gpus-per-node 4
