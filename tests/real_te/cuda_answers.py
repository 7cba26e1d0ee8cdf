"""Answers of torch.cuda for a GPU that is not there, and of tensors without data."""

import functools
from contextlib import contextmanager, nullcontext

import torch
from torch.utils._device import _device_constructors

_H100 = {"multi_processor_count": 132, "total_memory": 80 * 2**30, "name": "NVIDIA H100 80GB HBM3"}
_FACTORIES = ("empty_like", "zeros_like", "ones_like", "full_like", "randint", "empty_strided", "empty", "zeros", "ones",
              "full", "tensor", "arange", "randn", "eye", "rand", "linspace")  # fmt: skip


def install(stood_for):
    """Answer as the GPU of ``stood_for`` would; its capability may change later."""
    _device(stood_for)
    _factories_make_tensors_on(stood_for)
    _generators_have_no_state()
    _addresses_tell_storages_apart()
    _values_are_not_read()
    _groups_are_like_the_default_one()
    _messages_are_sent_by_nobody()


def _device(stood_for):
    class Properties:
        major = property(lambda _self: stood_for.capability[0])
        minor = property(lambda _self: stood_for.capability[1])

    for name, value in _H100.items():
        setattr(Properties, name, value)
    torch.version.cuda = "13.0"
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda *_device: stood_for.capability
    torch.cuda.get_device_properties = lambda *_device: Properties()
    torch.cuda.is_bf16_supported = lambda *_arguments, **_options: True
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.device = type("device", (nullcontext,), {})
    torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *_message: None
    torch.Tensor.is_cuda = property(lambda self: self.device.type in {"meta", "cuda"})


def _factories_make_tensors_on(stood_for):
    """transformer-engine writes "cuda" and device numbers where the tracer's own adaptations expect neither."""

    def redirected(factory):
        @functools.wraps(factory)
        def call(*args, **kwargs):
            device = kwargs.get("device")
            if type(device) is int or str(device).startswith("cuda"):
                kwargs["device"] = stood_for.device
            return factory(*args, **kwargs)

        return call

    _device_constructors()  # caches the plain functions: the device context knows factories by identity
    for name in _FACTORIES:
        setattr(torch, name, redirected(getattr(torch, name)))


def _generators_have_no_state():
    torch.cuda.get_rng_state = lambda *_arguments, **_options: torch.zeros(16, dtype=torch.uint8, device="cpu")
    torch.cuda.set_rng_state = lambda *_arguments, **_options: None


def _addresses_tell_storages_apart():
    """Tensors without data all lie at address 0, and transformer-engine tells layouts by addresses."""
    tensor_address, storage_address = torch.Tensor.data_ptr, torch.UntypedStorage.data_ptr

    def of_tensor(self):
        if self.device.type != "meta":
            return tensor_address(self)
        return (self.untyped_storage()._cdata << 20) + self.storage_offset() * self.element_size()

    def of_storage(self):
        return storage_address(self) if self.device.type != "meta" else self._cdata << 20

    torch.Tensor.data_ptr, torch.UntypedStorage.data_ptr = of_tensor, of_storage


def _values_are_not_read():
    """Initial values go to the host, and masks are compared: neither has data."""
    cpu, equal, item = torch.Tensor.cpu, torch.equal, torch.Tensor.item

    def to_host(self, *args, **kwargs):
        is_meta = self.device.type == "meta"
        return torch.empty(0, dtype=self.dtype, device="cpu") if is_meta else cpu(self, *args, **kwargs)

    torch.Tensor.cpu = to_host
    torch.Tensor.item = lambda self: 0 if self.device.type == "meta" else item(self)
    torch.equal = lambda a, b: False if a.device.type == "meta" else equal(a, b)


def _groups_are_like_the_default_one():
    """User buffers ask for NCCL groups, which torch for CPUs lacks."""
    functions = torch.distributed.distributed_c10d
    new_group = functions.new_group

    def like_default(ranks=None, *, backend=None, **options):
        return new_group(ranks, **options)

    torch.distributed.new_group = functions.new_group = like_default
    torch.distributed.is_backend_available = lambda _backend: True


def _messages_are_sent_by_nobody():
    """Groups of a trace have no backend for tensors without data: gathers run one by one, sends are over at once."""

    class Work(nullcontext):
        def wait(self):
            pass

    @contextmanager
    def one_by_one(*_arguments, **_options):
        yield Work()

    def at_once(*_arguments, **_options):
        return Work()

    torch.distributed._coalescing_manager = one_by_one
    torch.distributed.batch_isend_irecv = lambda operations: [Work() for _ in operations]
    for module in (torch.distributed, torch.distributed.distributed_c10d):
        for name in ("isend", "irecv", "send", "recv"):
            setattr(module, name, at_once)
