"""`mbr-perf check`: a request judged by every rule, and by the installed megatron-core, without starting anything."""
