"""Known texts of failures between ranks: the launch, the rendezvous, collectives, NCCL and the network."""

import re

from harness.failures.known_texts import KnownText, row

STACKS_ADVICE = (
    "py-spy dump of every rank while it hangs, or TORCH_NCCL_DUMP_ON_TIMEOUT=1 with "
    "TORCH_NCCL_TRACE_BUFFER_SIZE=2000. Then check data loading, checkpoints, and branches that only some ranks take."
)
WAITED_ADVICE = f"Find the rank that is missing from the collective: {STACKS_ADVICE}"
_LOST_PEER = (
    r"ncclRemoteError|remote process exited|Connection (?:closed|reset) by (?:remote )?peer|Broken pipe|recvValue failed"
    r"|Socket recv failed while polling|Could not receive type from localRank|communicator was aborted|NCCL communicator .{0,80}abort"
)
_WAITED = (
    r"Watchdog caught collective|collective operation timeout|operations have failed or timed out"
    r"|Heartbeat monitor timed out|due to collective timeout|Socket Timeout|detected by watchdog at work|Timeout at NCCL work"
)
# How torch reports that its watchdog ended the process. The line does not say what the watchdog had found before.
_ENDED_BY_WATCHDOG = r"Exception raised from ncclCommWatchdog|watchdog thread terminated(?! cleanly| with exception: (?!\[Rank \d{1,6}\]\s*$)\S)"
_STUCK = r"watchdog got stuck for|ProcessGroupNCCL watchdog hang"
_RENDEZVOUS = (
    r"Rendezvous(?:Connection|Timeout|Closed|GracefulExit|State)Error|connection to the C10d store has failed"
    r"|client socket has (?:timed out|failed)|TCP client failed to connect"
)
_LISTENING = r"server socket has failed to listen on any"
# Not a time-out that is only set: "timeout=60", "timeout is 100 s", "set timeout".
_EXPERTS = (
    r"\b(?:DeepEP|NCCL EP|[Hh]ybrid[-_ ]?EP)\b(?!.{0,60}?\bset\b).{0,60}?(?:timeout(?!s? ?[=:] ?\d| (?:is|of)\b)|timed out)"
    r"|\bnum_(?:rdma_)?recv_tokens: -1(?![\w.])|\bmoe_recv_expert_counter\[\d{1,4}\]: -1(?![\w.])"
)
# NCCL's own lines (src/misc/ibvwrap.cc, src/transport/net_ib, src/misc/socket.cc), and torch's names of its error codes.
_REGISTRATION = r"\bibv_(?:exp_)?reg_(?:dmabuf_)?mr\w*(?: ?\([^)]{0,200}\))? (?:failed|returned)|Couldn't allocate MR\b|\bMR registration failed"
_ADDRESS = r"Call to bind failed|no socket interface found|connecting to address .{0,100}is neither AF_INET|Bootstrap : .{0,80}not found"
_FABRIC = (
    r"\bibv_\w{2,40}(?: ?\([^)]{0,200}\))? (?:failed|timed out|returned)|NET/IB.{0,60}\bGot (?:completion|async)|Got completion from peer"
    r"|Call to connect\b.{0,100} (?:failed|returned)|[Cc]onnect to \S{1,80}<\d{1,5}> (?:failed|returned)"
    r"|mlx5: \S{1,100}: got completion with error|Transport retry count exceeded"
)
_ADAPTER = (
    r"\bibv_(?:create|alloc|open|query|get)_\w{2,40}(?: ?\([^)]{0,200}\))? (?:failed|returned)|local catastrophic error"
)
_QP_EVENT = r"NET/IB.{0,60}\basync fatal event"  # says less than a failed completion, which names the peer
_NVLS = r"Failed to bind NVLink SHARP(?!.{0,300}Proceeding without)|\bnvls\.cc:\d{1,5} NCCL WARN|NCCL WARN .{0,80}\b(?:NVLS|cuMulticast)"
_LIBFABRIC = r"NCCL WARN NET/OFI"
_CUDA_CALL = r"NCCL WARN Cuda failure"
_UNSHARED = r"shared memory segment .{0,200}No such file or directory"
_UNNAMED_CALL = r"ncclUnhandledCudaError|unhandled cuda error|NCCL [Ee]rror 1\b"
_UNSEEN_GPU = r"NCCL WARN nvml\w{2,60}(?: ?\(\))? failed"
_SYSTEM = r"ncclSystemError|NCCL [Ee]rror 2\b|unhandled system error"
_DUPLICATE = r"Duplicate GPU|both on CUDA device"
_NO_SUCH_GPU = r"invalid device ordinal|device < num_gpus"
_INVALID_USAGE = r"ncclInvalidUsage|NCCL [Ee]rror 5\b|invalid usage \(run with NCCL_DEBUG|, invalid usage, NCCL"
_OWN_FAULT = rf"{_REGISTRATION}|{_ADDRESS}|{_FABRIC}|{_UNSEEN_GPU}|{_NVLS}|{_LIBFABRIC}|{_CUDA_CALL}|{_UNSHARED}"
# How a rank reports that it lost the others, or cannot reach them.
PEER_LOST = rf"{_LOST_PEER}|{_WAITED}|{_STUCK}|{_RENDEZVOUS}|{_LISTENING}|{_EXPERTS}|{_OWN_FAULT}|{_QP_EVENT}|{_SYSTEM}"
EXPERTS = re.compile(_EXPERTS)  # a kernel that waited too long ends its process with a failed launch
LAUNCH_FAULT = re.compile(rf"{_DUPLICATE}|{_INVALID_USAGE}|{_NO_SUCH_GPU}")
ENDED_BY_WATCHDOG = re.compile(_ENDED_BY_WATCHDOG)
DETAIL = re.compile(rf"{_DUPLICATE}|{_OWN_FAULT}")  # more than torch's error says
NAMES_ANOTHER = re.compile(_LOST_PEER)  # the cause is in the log of another rank

# The first row that matches counts.
NETWORK_ENDS: tuple[KnownText, ...] = (
    row(r"EADDRINUSE|[Aa]ddress already in use", "the port for the ranks' rendezvous was in use",
         "End ranks that an earlier job left behind, or use another port (--master_port)."),
    row(r"server socket has failed .{0,300}(?:EACCES|Permission denied)", "the process may not listen on the port for the ranks' rendezvous",
         "Use a port above 1023 (--master_port): lower ones belong to the system."),
    row(r"server socket has failed .{0,300}(?:EADDRNOTAVAIL|[Cc]annot assign requested address)", "the address for the ranks' rendezvous does not belong to this node",
         "MASTER_ADDR (--rdzv_endpoint) must be an address of the node with rank 0: compare it with hostname -I there."),
    row(_LISTENING, "the port for the ranks' rendezvous could not be opened",
         "The line may name the reason. If it is in use, end ranks that an earlier job left behind, or use another port (--master_port)."),
    row(r"Name or service not known|Name does not resolve|can't resolve '|[Cc]ould not resolve host|Temporary failure in name resolution|nodename nor servname|getaddrinfo failed", "the name of a node or server could not be resolved",
         "Check the name in the line (getent hosts NAME) on every node, also inside the container: MASTER_ADDR must be known there, or use its address."),
    row(r"\bwaiting for clients\b|RendezvousTimeoutError|store[- ]based barrier", "not all ranks joined the rendezvous in time",
         "See which ranks started: all nodes must run the same command with the same MASTER_ADDR, MASTER_PORT and number of nodes, and reach that port. "
         "Read the log of a rank that is missing first."),
    row(r"Rendezvous(?:Closed|GracefulExit)Error", "the rendezvous had been closed: the launchers of other nodes had ended, or left it",
         "Read the log of the node that ended first. A new attempt needs a new --rdzv_id: a closed rendezvous stays closed."),
    row(_RENDEZVOUS, "a process could not reach the rendezvous of the ranks",
         "Check that the first node started, and that the others reach its address and port (MASTER_ADDR, MASTER_PORT, --rdzv_endpoint): getent hosts, "
         "nc -z, firewall. If the first node's process ended, read its log first."),
    row(_EXPERTS, "the exchange of tokens between experts (DeepEP, HybridEP, NCCL EP) timed out while it waited for another rank",
         "Read the logs of the ranks that report no time-out first: one may have ended, or run another batch. Between nodes, check the InfiniBand links and "
         "NVSHMEM's settings (NVSHMEM_IB_GID_INDEX with RoCE). Then run it with the dispatcher alltoall: if it trains, DeepEP's setup is the cause."),
    row(_STUCK, "torch's watchdog thread hung in a call of CUDA or NCCL, or waited for Python's lock",
         "Take a py-spy dump --native of that rank while it hangs. Look for a GPU that hangs (dmesg, lines with Xid) and for long calls that hold the lock, "
         "such as loading data or a checkpoint. If it is only slow, set a larger TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC."),
    row(rf"{_WAITED}|Timed out waiting \d|wait timeout after \d|timed out after \d",
         "ranks waited in a collective until its time limit: another rank hung, was slow, or had ended", WAITED_ADVICE),
    row(r"not finished after \d", "the run reached its time limit",
         "Give it more time (--timeout) or fewer steps (--max_steps)."),
    row(r"gave no sign of life", "a rank hung", "Read the stacks of all ranks, which are in their "
         "logs. If a step is only slow, use a longer --hang_timeout."),
    row(_DUPLICATE, "two processes of the launch use the same GPU",
         "Start one process per GPU: as many per node as it has GPUs (--nproc_per_node, --ntasks-per-node). Each process must select its own: "
         "torch.cuda.set_device(LOCAL_RANK), and CUDA_VISIBLE_DEVICES must list every GPU once."),
    row(_NO_SUCH_GPU, "a process of the launch selected a GPU that it does not see",
         "Start as many processes per node as it has GPUs (--nproc_per_node, --ntasks-per-node). Compare LOCAL_RANK with CUDA_VISIBLE_DEVICES, or "
         "with --gpus-per-task, which shows each task one GPU only."),
    row(r"[Mm]ismatch between collectives|Mismatched collective detected|Message truncated : received \d", "ranks called different collectives",
         "Compare the two calls or sizes that the message names: look for branches, data or settings that differ between the ranks."),
    row(_INVALID_USAGE, "NCCL was used wrongly: a fault of the launch, usually two processes on one GPU",
         "Run it with NCCL_DEBUG=WARN, which names the two ranks or the wrong call. Compare the processes per node with its GPUs, and LOCAL_RANK "
         "with CUDA_VISIBLE_DEVICES."),
    row(_UNSEEN_GPU, "NCCL could not look up a GPU of the node with NVML",
         "Show every process all GPUs of the node and select one with LOCAL_RANK: a container or a Slurm step that hides the others from some ranks breaks this. "
         "Compare nvidia-smi -L inside and outside of it."),
    row(_NVLS, "NCCL could not set up NVLink SHARP (NVLS), which needs the NVSwitches of the node",
         "To confirm: run it with NCCL_NVLS_ENABLE=0, which is slower. Then check nvidia-fabricmanager (its version must be the driver's; in nvidia-smi -q, Fabric: Completed, Success), "
         "and restart it after a GPU was reset."),
    row(_UNSHARED, "a rank did not find the shared memory that another rank of its node had made",
         "All ranks of a node must see the same /dev/shm (one container, or --ipc=host), and nothing may clean it (RemoveIPC in logind.conf). If the other rank ended, read its log first. "
         "To confirm: run it with NCCL_SHM_DISABLE=1, which is slower."),
    row(_LIBFABRIC, "the network plugin for libfabric (EFA) failed",
         "Check on that node: fi_info -p efa lists the devices, the container has them (/dev/infiniband), ulimit -l is unlimited, and the security group allows all traffic within itself. "
         "The releases of aws-ofi-nccl, libfabric and NCCL must fit."),
    row(_REGISTRATION, "memory could not be registered with the network card, which GPUDirect RDMA needs",
         "Load nvidia_peermem on every node (lsmod), or use a driver with DMA-BUF, and raise the limit of locked memory (ulimit -l unlimited, also in the container). "
         "To confirm: run it with NCCL_NET_GDR_LEVEL=LOC, which is slower but registers no GPU memory. The link itself is not the suspect."),
    row(_ADDRESS, "NCCL found no usable address on the network interface that it chose",
         "Set NCCL_SOCKET_IFNAME to the interface that connects the nodes (ip -br addr; not lo or docker0), and NCCL_SOCKET_FAMILY=AF_INET if its IPv6 "
         "address is only link-local (fe80::)."),
    row(_ADAPTER, "the network adapter (InfiniBand, RoCE) of a node failed or refused a call",
         "Look on that node: ibv_devinfo (port ACTIVE), dmesg (mlx5), and ulimit -l unlimited; a container needs /dev/infiniband and the IPC_LOCK capability. A catastrophic error is the adapter's own: take the node out of use. "
         "To confirm: run it with NCCL_IB_DISABLE=1, which is slower."),
    row(rf"{_FABRIC}|{_QP_EVENT}", "the network between nodes failed",
         "Check the link between both ends: ibstat and ibv_devinfo (port ACTIVE), ib_write_bw, NCCL_IB_HCA, NCCL_IB_GID_INDEX with RoCE, "
         "NCCL_SOCKET_IFNAME. If another rank failed before, read its log first."),
    row(_SYSTEM, "the network failed, or another system call of NCCL: its error does not name which",
         "Run it with NCCL_DEBUG=WARN: its lines before the error name the call, the device and the peer. A rank that ended also causes this error on the others, "
         "so read the logs of all ranks.", confidence="medium"),
    row(r"(?:BrokenPipe|ConnectionReset|ConnectionAborted)Error\b|\b(?:requests|urllib3|aiohttp|httpx)(?:\.\w{1,40}){1,4}(?:Error|Exception|Timeout)\b", "a connection to another process or a service broke",
         "See in the traceback what it was: a data loader worker that died, a logger, or a server on the network. Read the lines before it for the process that ended.", confidence="medium"),
    row(_LOST_PEER,
         "the connection to another rank broke: that rank failed first, but these logs do not show why",
         "Pass the logs of all ranks and nodes; the log that ends first is the most useful."),
    row(_ENDED_BY_WATCHDOG, "torch's NCCL watchdog ended the process; an earlier line has the reason",
         "Find the first line of that rank with ProcessGroupNCCL: a collective that timed out, an error of NCCL or of CUDA. Pass the logs of all ranks.", "unknown", confidence="low"),
    row(r"ncclInvalidArgument|NCCL [Ee]rror 4\b|invalid argument, NCCL", "NCCL refused an argument of the program",
         "Run it with NCCL_DEBUG=WARN, which names the argument; TORCH_DISTRIBUTED_DEBUG=DETAIL compares shapes and types of all ranks."),
    row(rf"{_CUDA_CALL}|{_UNNAMED_CALL}", "a call of CUDA failed inside NCCL",
         "Run it with NCCL_DEBUG=WARN, which names the call and its error, and read errors of that rank before it. If no GPU failed (dmesg, lines with Xid), compare the CUDA of NCCL with the driver."),
    row(r"ncclInternalError|NCCL [Ee]rror", "NCCL failed",
         "Run it with NCCL_DEBUG=WARN, which names the call that failed; the first such line of any rank is the cause."),
)  # fmt: skip

_PAIR = re.compile(r"rank (\d{1,6}) and rank (\d{1,6}) both on CUDA device ([0-9a-f]{1,16})")
_CALL = re.compile(
    r"\b(ibv_\w{2,40})\b.{0,40}?(Connection timed out|timed out|No route to host|Network is unreachable)"
)
_DEVICE = re.compile(r"\bon dev ([\w.:-]{1,40})")
_PEER = re.compile(
    r"remote GID ([0-9A-Fa-f:.]{2,60})|remoteGids?:? ?([0-9A-Fa-f:.]{2,60})|from peer ([\w.:<>\[\]-]{2,80})"
    r"|[Cc]onnect to ([\w.:<>\[\]-]{2,80})"
)


def named_in(text: str, reason: str) -> str:
    """Return the ranks on one GPU, or the call, device and peer of a network error, as the text names them."""
    if pair := _PAIR.search(text):
        is_glued = text.startswith(" and rank", pair.end())  # another rank's words follow without a blank
        return f": rank {pair[1]} and rank {pair[2]}{'' if is_glued else f' both on CUDA device {pair[3]}'}"
    if not reason.startswith("the network"):
        return ""
    call, device, peer = _CALL.search(text), _DEVICE.search(text), _PEER.search(text)
    known = (
        f"{call[1]}: {call[2]}" if call else "",
        f"on {device[1]}" if device else "",
        f"peer {next(group for group in peer.groups() if group)}" if peer else "",
    )
    found = ", ".join(part for part in known if part)
    return f" ({found})" if found else ""
