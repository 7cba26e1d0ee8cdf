"""Fused routing, off unless `moe_router_fusion` is asked for, which no spec can."""

fused_topk_with_score_function = None
fused_compute_score_for_moe_aux_loss = None
fused_moe_aux_loss = None
