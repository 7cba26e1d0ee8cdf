# /opt/conda/bin/python in a comment
/nowhere/bin/python -c "print(1)"
$CONDA_PREFIX/bin/torchrun --nproc_per_node 8 pretrain_gpt.py
/nowhere/bin/python3.11 pretrain_gpt.py
