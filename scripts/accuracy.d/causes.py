"""Why classes of published runs are off. Nothing was tuned to them."""

CAUSES = (
    "auto attention on A100 with LTS software: the older transformer-engine of that stack runs unfused attention in "
    "deterministic mode (its peaks equal those of the runs that ask for unfused), the prediction assumes a fused one",
    "models of half a GB to one GB: the one workspace constant was read off H100 runs; A100 needs some 16 MB less, with "
    "context parallelism 74 MB less, which is percents here and nothing on models that fill a GPU",
    "FP8, TP2 PP2 with tp_comm_overlap: 104 MB more stand allocated between steps than predicted, user buffers by their "
    "size; they are not modelled",
    "experts: the router of an untrained model spreads tokens unevenly; the prediction's middle is even, its range is not",
    "local layers: megatron-core's own fused scale-mask-softmax kernel keeps less than the local attention of this harness",
)
