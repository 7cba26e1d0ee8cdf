"""Builds and runs a last stage under real transformer-engine Python: ``without_apex.py TE_FOLDER REQUEST OUT [apex]``.

Without ``apex`` Apex's kernel cannot be imported. The answer says which layers fuse the accumulation of weight gradients,
and holds the bytes of the trace.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import loading

from harness.engine import trace as engine_trace
from harness.records.trace import TraceRequest


def main():
    """Trace the only case of the request."""
    folder, asked, out = map(Path, sys.argv[1:4])
    (case,) = TraceRequest.model_validate_json(asked.read_text()).cases
    loading.prepare(folder)
    if sys.argv[4:] != ["apex"]:
        sys.modules["fused_weight_gradient_mlp_cuda"] = None
    engine_trace.prepare(transformer_engine=True)

    from harness.engine.tracing.chunk import Groups, build, stage_config
    from harness.engine.tracing.run import prepared

    spec = prepared(case, "transformer_engine", Groups())
    config = stage_config(spec)
    chunk = build(case, spec, config)
    modules = dict(chunk.gpt.named_modules())
    fuse = {name: module.fuse_wgrad_accumulation for name, module in modules.items() if _is_te_linear(module)}
    measured = chunk.measure()
    bytes_of = {name: getattr(measured, name) for name in ("saved_bytes", "persistent_bytes", "backward_peak_bytes")}
    own = chunk.gpt.output_layer.gradient_accumulation_fusion
    out.write_text(json.dumps({"transformer_engine": fuse, "output_layer": own, **bytes_of}))


def _is_te_linear(module):
    return hasattr(module, "fuse_wgrad_accumulation")


if __name__ == "__main__":
    main()
