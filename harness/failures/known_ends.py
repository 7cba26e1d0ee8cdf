"""Known texts of failures with another cause than memory: who ended the job, the device, libraries, files, the program, its results."""

import re
from dataclasses import replace

from harness.failures.frames import COMPARE_CHECKPOINT, COMPILER_ADVICE
from harness.failures.known_texts import SLURM, KnownText, row
from harness.failures.network_ends import NETWORK_ENDS, named_in
from harness.failures.verdict import OomVerdict
from harness.units import first_line

_BUILDS = (
    "Install releases that were built for each other: `mbr-perf doctor` shows the versions on this machine. Build the extension again for this torch and CUDA "
    "(pip install --no-build-isolation --no-cache-dir), or use a container that has all of them."
)
_GPU = "a GPU failed or was lost"
_MISFIT = "the checkpoint does not fit the model"
_UNEVEN = "a size does not divide evenly over ranks, stages, heads or micro-batches"
_CHECK = "Run `mbr-perf check` with the job's settings, which needs no GPU: it names the rule and the values."
_SIZES = r"\w{0,40}(?:[Ss]ize|layers?|heads|groups|batch\w{0,8}|parallel\w{0,8}|dimension|[Ll]ength|vocab\w{0,8}|experts|GPUs)"
_RISING = "Check the losses before it. A rising loss points to the learning rate or the data; otherwise suspect"
NOT_FINITE_ADVICE = f"{_RISING} precision or a GPU. With FP8 and recompute: recompute only core_attn, not layernorm. Then run the same job with -c bf16."
_NOT_FINITE_IN_BF16 = f"{_RISING} a GPU: run it again from the last checkpoint on other nodes."
# Lines of NVIDIA's driver in the kernel's log, by their codes: faults of the GPU, and of the program.
_XID = r"\bX(?:id|ID)(?!.{0,20}(?:monitor|watch|check|ignor|filter))(?:\b.{0,80}?:)?[ :=]{1,3}"
_XIDS_OF_GPU = r"(?:48|62|64|74|79|9[45]|109|110|119|120|136|140|14[3-9]|150|154|156|158|171|172)\b"
_XIDS_OF_PROGRAM = r"(?:13|31|43|69|137)\b"
XID_LINE = rf"{_XID}(?:{_XIDS_OF_GPU}|{_XIDS_OF_PROGRAM})"
# DeepSpeed looks for libaio and cuFile in every job, and goes on without them.
UNLINKED = r"\bld: cannot find -l(?!aio\b|cufile\b)\w"
# Lines of other programs and of CUDA, which are no errors of Python, and show why a job ended.
OF_PROGRAMS = re.compile(
    r"The node was low on resource: |^\S{1,200}\.py: error: |\bpyxis: .{0,100}(?:failed|error)|error: pyxis: (?!child \d{1,10} terminated)|error: execve\(\)"
    r"|srun: error: (?:Unable to|Node failure|Task launch for|Application launch failed)|\bnvidia-container-cli: |Memory access fault by GPU"
    r"|\*\*\* An error occurred in MPI_|PMI2?_Init failed|\be! {1,20}Error: CUDNN_STATUS_|insufficient shared memory \(shm\)|\bOOMKilled\b"
    r"|\.so: undefined symbol|^(?:Invalid handle\. )?(?:Cannot|Could not) load (?:symbol|library) \S|^Error CUDA driver version is insufficient"
    r"|Unable to load .{1,40} from checkpoint .{1,300}--no-load|thread: \[[\d,]{1,40}\] Assertion|:\d{1,6}: .{1,1000}: Assertion .{1,500} failed\.?$"
    r"|\bAssertion [`'].{1,500}' failed\.?$|:\d{1,6} in function .{1,100}: Assertion failed: |Mismatched collective detected"
    rf"|terminated with exception: .{{0,40}}CUDA error|{UNLINKED}|what\(\): {{0,4}}CUDA error|^\s*what\(\): {{0,4}}\S|\bUnhandled exception: .{{0,300}}what\(\)"
)
# Reports of Ray and vLLM about a worker, which do not show why it ended.
_RAY = r"\b(?:ActorDied|RayActor|WorkerCrashed)Error\b|Worker exit type: SYSTEM_ERROR"
_VLLM = r"\bWorker proc \S{1,60} died unexpectedly|Engine process \(pid \d{1,10}\) died|Engine\w{0,20} (?:loop )?(?:has died|is already dead)|\bEngineDeadError\b"
REPORTS_OF_WORKERS = re.compile(f"{_RAY}|{_VLLM}")

# Who ended the job, and the device.
_JOB_ENDS: tuple[KnownText, ...] = (
    row(rf"{SLURM}(?:TIMEOUT|DEADLINE)\b|DUE TO TIME LIMIT|this job is timed-out", "Slurm ended the job at its time limit",
         "Ask for more time (--time of sbatch, --time_limit of mbr-perf) or fewer steps, or let the job save a checkpoint and end before the limit (--exit-duration-in-mins of Megatron-LM). "
         "If the time was enough before, compare the log with that of a job that was in time: mbr-perf diagnose LOG --against EARLIER_LOG", "time_limit"),
    row(rf"{SLURM}(?:NODE_FAIL|BOOT_FAIL)\b|DUE TO NODE FAILURE|srun: error: Node failure on", "Slurm lost a node of the job",
         "Run it again without that node (sbatch --exclude), and report the node to your administrators.", "node_failure"),
    row(rf"{SLURM}PREEMPTED\b|DUE TO PREEMPTION|this job is preempted", "Slurm preempted the job",
         "Run it again; for important jobs, use a partition or QOS without preemption."),
    row(r"DUE TO JOB REQUEUE", "Slurm put the job back into its queue",
         "It starts again by itself: look for the log of the next attempt (scontrol show job, field Restarts). sacct -j JOB --duplicates shows why: a preemption, a lost node, or a "
         "user's scontrol requeue."),
    row(rf"{SLURM}(?:LAUNCH_FAILED|RECONFIG_FAIL)\b|{SLURM}never started", "Slurm never started the job's script",
         "Check the reason that Slurm gives (scontrol show job, sacct -j), and the job's log file and folder."),
    row(rf"{SLURM}STEP ENDED\b", "Slurm ended the job step, but not the job",
         "Look in the job's log for the task that failed (srun: error: NODE: task N), and read the logs of its ranks."),
    row(r"The node was low on resource: (?P<what>[\w-]{1,40})", "Kubernetes evicted the pod, because its node ran out of a resource", "Ask for as much of it as the job uses (resources.requests and limits; for ephemeral-storage, "
         "write caches and checkpoints to a volume), or run it on a larger node: kubectl describe pod has the figures."),
    row(r"Failed to create placement group|[Pp]lacement group .{0,200}(?:timed out|cannot be (?:created|scheduled)|infeasible)|available GPUs [\d.]{1,12} is less than total desired GPUs", "Ray's cluster has fewer free GPUs than the job asks for",
         "Compare `ray status` with the job's number of nodes and GPUs per node. If nodes are missing, they did not join, were preempted, or an earlier job still holds their GPUs."),
    row(rf"{SLURM}CANCELLED\b", "a user cancelled the job", "Ask who ran scancel; the job itself does not show the reason."),
    row(r"\bpyxis: (?!child \d{1,10} terminated)", "Slurm could not start the container",
         "The lines of enroot below it name the step that failed. Check the image's name, your login to its registry (~/.config/enroot/.credentials), the paths of the mounts, and the space "
         "and owner of enroot's folders (ENROOT_CACHE_PATH, ENROOT_DATA_PATH, ENROOT_RUNTIME_PATH)."),
    row(r"srun: error: (?:Unable to|Task launch for|Application launch failed)|error: execve\(\)|Job credential expired", "Slurm never started the job step",
         "Check that the program and the folder exist on every node, and that the step asks for no more than the job has (scontrol show job). If a credential expired, compare the clocks of the nodes."),
    row(r"\*\*\* An error occurred in MPI_|MPI_ERRORS_ARE_FATAL|MPI_INIT failed|PMI2?_Init failed|\bPMIX ERROR: (?!.{0,200}\bgds_ds\d\d_lock)", "a call of MPI failed, usually because it does not fit its launcher",
         "The MPI of the program and its launcher must be the same: with Slurm, list the choices (srun --mpi=list) and usually add --mpi=pmix, or start it with the mpirun of that MPI. Without user buffers for TP (tp_comm_overlap) "
         "Megatron needs no MPI. If the log shows an error of a rank before, read that first."),
    row(r"system not yet initialized", "the GPUs of the node are not connected: NVIDIA's Fabric Manager is not running",
         "Start it (systemctl status nvidia-fabricmanager) in the driver's own version, or run the job on another node."),
    row(rf"{_XID}{_XIDS_OF_GPU}|caused by previous Xid {_XIDS_OF_GPU}|uncorrectable NVLink error|GPU is lost|fallen off the bus|CUDA_ERROR_(?:ECC|NVLINK)_UNCORRECTABLE"
         r"|[Uu]ncorrectable ECC|CUDA error: no CUDA-capable device|Unable to determine the device handle|RmInitAdapter failed|rm_init_adapter failed", _GPU,
         "Take the node out of use, and check its kernel log (dmesg, lines with Xid) and "
         "nvidia-smi -q -d ECC,ROW_REMAPPER; run the job on another node."),
    row(r"[Dd]river version is insufficient|driver on your system is too old|forward compatibility was attempted|unsupported display driver|SYSTEM_DRIVER_MISMATCH"
         r"|[Dd]river/library version mismatch", "the GPU driver does not fit the CUDA of the program",
         "Compare `nvidia-smi` (the CUDA that the driver supports) with torch.version.cuda: install a newer driver, or a torch for an older CUDA. After an update of the "
         "driver, load its module again (reboot)."),
    row(r"capability \d.{0,20} required for \w{0,5}FP[48]|\bfp[48]\w{0,8} (?:is )?(?:not supported in this architecture|only supported on)|\bFP[48]\b.{0,60} only supported on",
         "this type of GPU does not have the FP8 format that the job uses",
         "Use -c bf16 (in Megatron-LM, leave out --fp8-format). FP8 needs compute capability 8.9 or higher, as H100 has; MXFP8 and NVFP4 need Blackwell GPUs."),
    row(r"no kernel image is available|CUDA error: invalid device function|is not compatible with the current PyTorch|unsupported toolchain|capability \d.{0,20} or higher required",
         "the program was not built for this type of GPU",
         "Compare torch.cuda.get_device_capability() with torch.cuda.get_arch_list(), and build extensions with TORCH_CUDA_ARCH_LIST for this GPU."),
    row(r"only supports? (?:\w{2,20} ){1,3}GPUs or newer|requires? (?:\w{2,20} ){1,3}GPUs or newer", "this type of GPU is too old for a kernel that the job uses",
         "Choose another implementation: for attention --attention-backend fused or unfused, or NVTE_FLASH_ATTN=0. Otherwise run it on a newer type of GPU."),
    row(r"could not select device driver|nvidia-container-cli: ", "the container could not get the GPUs of the node",
         "Install NVIDIA's container toolkit on that node (nvidia-ctk runtime configure), and check that nvidia-smi works outside of the container."),
    row(r"No CUDA GPUs are available|\bno GPUs found|Torch not compiled with CUDA|Found no NVIDIA driver|No supported gpu backend found|your machine only has: \[\]", "the job sees no GPU",
         "Check CUDA_VISIBLE_DEVICES, the GPUs that the job asked for (--gpus, --gres; docker --gpus all), and whether torch was built with CUDA."),
    row(r"cudaGetDeviceCount\(\).{0,400}Error \d{1,4}: (?P<what>\w.{0,80})", "CUDA could not start", "See whether nvidia-smi works there, also inside the container, and the kernel's log (dmesg, lines with NVRM). "
         "After an update of the driver, reboot; otherwise run the job on another node."),
    row(r"CUDA-capable devices?(?:\(s\))? (?:is/)?are busy or unavailable", "another process holds the GPU, or the GPU is in a bad state",
         "End processes that an earlier job left behind (nvidia-smi), and check the compute mode (nvidia-smi -q -d COMPUTE)."),
)  # fmt: skip

# Software and files that the program needs.
_NEEDS: tuple[KnownText, ...] = (
    row(r"\bwandb\.(?:errors|sdk)\b|\bwandb: ERROR|\bUsageError: api_key not configured", "Weights & Biases (wandb) could not be set up or reached",
         "Nodes often have no way out: set WANDB_MODE=offline, and send the results later with wandb sync. Otherwise check WANDB_API_KEY, and the names of entity and project."),
    row(r"environment variable (?:RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected, but not set|KeyError: '(?:LOCAL_RANK|RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'",
         "the program was not started by a launcher, which sets RANK and WORLD_SIZE",
         "Start it with torchrun (torchrun --nproc_per_node GPUS PROGRAM), or set the variables from those of Slurm (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID)."),
    row(r"No module named ['\"]?(?:torch|transformers|deepspeed|megatron|transformer_engine|flash_attn|vllm|accelerate|triton|numpy)\.(?!core\b)\w",
         "a library has no such module: it has another release than the program expects, or only a part of it is on the path",
         f"Print the library's __file__ and __version__ where the job runs, and compare them with what the program was written for. {_BUILDS}"),
    row(r"No module named ['\"]?transformer_engine\b", "transformer-engine is not installed where the job ran",
         "Install it there (`mbr-perf doctor` lists what is missing), or use megatron-core's own layers "
         "(--transformer-impl local; in mbr-perf, --set kernels.transformer_impl=local), which have no FP8."),
    row(r"No module named ['\"]?apex\b", "apex is not installed where the job ran",
         "Install it there, or switch off the features that need it, such as fused weight gradients (--no-gradient-accumulation-fusion)."),
    row(r"No module named ['\"]?megatron\b", "megatron-core is not installed where the job ran, or not on its path",
         "Install megatron-core there, or put Megatron-LM on its PYTHONPATH; `mbr-perf doctor` lists what is missing."),
    row(r"No module named ['\"]?(?:amp_C|apex_C|syncbn|fast_layer_norm|(?:\w+_)?cuda(?:_\w+)?|\w+_cuda)\b", "a compiled extension is missing: its library was installed without it",
         "Build the library again with its CUDA extensions, on a machine with nvcc (apex: APEX_CPP_EXT=1 APEX_CUDA_EXT=1 pip install -v --no-build-isolation .), or use a container "
         "that has them. Without the extension, switch the fused layers off (--no-gradient-accumulation-fusion, --no-masked-softmax-fusion)."),
    row(r"No module named ['\"]?[\w.]+|ModuleNotFoundError: \S|ImportError: .{0,200}(?:[Pp]lease install|\bpip install|not installed)", "a Python module is not installed where the job ran, or not on its path",
         "Install it in the environment that every node uses, or correct PYTHONPATH."),
    row(r"(?:Error: |exception |^)\S{1,200}\.so\S{0,40}: cannot open shared object file", "a shared library is missing: it is not installed, not on the path, or only another version is installed",
         "Find it (ldconfig -p; pip list: nvidia-cudnn, nvidia-cuda-runtime), and put its folder on LD_LIBRARY_PATH. The number after .so is the version that the program needs. If another is installed, install a build for that one, or use a container that has all of them."),
    row(r"undefined symbol|(?:Cannot|Could not) load (?:symbol|library) \S|' not found \(required by|module 'transformer_engine' has no attribute"
         r"|was compiled using a different version of|CUDA Setup failed despite GPU being available", "two libraries do not fit together: one was built for another version of the other",
         _BUILDS),
    row(r"(?:[Mm]aximum|[Mm]inimum) version \S{1,40} is (?:supported|required)|[Rr]equires? [\w.-]{2,40}(?: version)? ?(?:>=|<=|==|<|>) ?\d",
         "a library refuses the version of another", f"The line names the version that it accepts: install that one. {_BUILDS}"),
    row(r"TypeError: .{0,200}(?:unexpected keyword argument|missing \d{1,3} required (?:positional|keyword)|positional arguments? but|incompatible function arguments)",
         "a call does not fit the function that it calls: a library has another release than its caller expects, or a change of the job's own code is incomplete",
         f"See in the traceback which two libraries the last frames are of. {_BUILDS}", confidence="medium"),
    row(r"AttributeError: (?:(?:partially initialized )?module|type object) '[\w.]{1,100}' has no attribute|was not found in module\b|Failed to import \S{1,100} because of the following error",
         "a module or a class lacks what the program expects of it: a library has another version, or a file of the job has the name of a library",
         f"See in the traceback which module is meant, and print its __file__ and __version__. {_BUILDS}", confidence="medium"),
    row(r"IndexError: \w{0,30}[Mm]ap\w{0,10}::at", "compiled code looked up an entry that it does not have: its Python part is usually of another release", f"See in the traceback which extension was called. {_BUILDS}",
         confidence="medium"),
    row(r"cannot import name", "an import failed: a library has another version than the program expects, or a file of the job has the name of a library",
         f"See in the traceback which file was imported. {_BUILDS}", confidence="medium"),
    row(r"CUDA_HOME (?:environment variable )?(?:is not set|does not exist)|nvcc(?:\W{1,3}| was | is )not found|which: no nvcc|detected CUDA version \(\S{1,20}\) mismatches|Installed CUDA version .{1,60} does not match the version torch was compiled with",
         "an extension must be compiled, and the CUDA toolkit for it is missing or of another version",
         "Install the toolkit (nvcc) of the CUDA version that torch.version.cuda names, and set CUDA_HOME to its folder; or install a wheel of the extension that is already compiled."),
    row(r"command not found", "a command of the launch is not installed where it ran, or not on its PATH",
         "Activate the environment of the job in its script, on every node, or name the command with its path (python -m torch.distributed.run instead of torchrun)."),
    row(r"\[['\"]ninja['\"]|Error building extension|Ninja is required|\bptxas (?:fatal|error)|\bnvcc fatal|Error compiling objects"
         rf"|{UNLINKED}|\S:\d{{1,6}}(?::\d{{1,4}})?: (?:fatal error: |error: #error )|ninja: build stopped", "a kernel or an extension could not be compiled",
         "Read the compiler's error above. Check nvcc, gcc and ninja in the environment of the job; for a library that ld cannot find, LIBRARY_PATH (libcuda: the folder stubs of the CUDA toolkit). After a compile that was killed, delete the "
         "extension's folder in ~/.cache/torch_extensions (TORCH_EXTENSIONS_DIR)."),
    row(r"\.py: error: ", "the launch has an option that the program refuses",
         "Correct the option that the line names; the program's --help lists all. Options differ between releases of Megatron."),
    row(r"No space left on device|\[Errno 28\]|Disk quota exceeded|\[Errno 122\]", "a disk is full",
         "Free some space, or write to another file system (df -h; quota)."),
    row(r"File .{1,300} cannot be opened\.?$|Parent directory .{1,300} does not exist", "a checkpoint could not be opened for writing: its folder is missing, is not yours, or its disk is full",
         "Make the folder before (on every node that writes), and check its owner, its space and the quota (ls -ld, df -h, quota)."),
    row(r"PytorchStreamWriter failed|\] \. unexpected pos \d", "a checkpoint could not be written, usually because a disk or a quota is full",
         "Check the space and the quota where the checkpoint goes (df -h, df -i, quota), and the limit of a container's own disk; then its mount (dmesg)."),
    row(r"Stale file handle|failed with Input/output error|Read-only file system|Transport endpoint is not connected|\bOSError: \[Errno (?:5|30|107|116|121)\]",
         "a file system failed under the job", "Check the mount on that node (df, mount, dmesg), and run the job again without the node if others reach it."),
    row(r"Too many open files|\[Errno 24\]|received 0 items of ancdata", "the process had too many files open",
         "Raise the limit (ulimit -n 65536), or use fewer data loader workers."),
    row(r"[Uu]nable to (?:synchronously )?(?:open|create|lock) file.{0,200}(?:unable to lock|errno = 11)|[Ff]ailed to lock|Lock(?:ing)? failed|No locks available|\[Errno 37\]",
         "a lock on a file could not be taken", "Another process may hold the lock (lsof on every node), or the file system has none (NFS). Put the cache on a local disk; for HDF5 set HDF5_USE_FILE_LOCKING=FALSE."),
    row(r"PermissionError|\[Errno 13\]|: Permission denied$", "the job may not read or write a file or folder",
         "Check who owns the path that the line names (ls -ld). Caches in a container go to HOME: set HOME, HF_HOME, TRITON_CACHE_DIR and TORCH_EXTENSIONS_DIR to a folder of yours."),
    row(r"can't start new thread|pthread_create failed|Thread creation failed|Resource temporarily unavailable|\[Errno 11\]",
         "the limit of processes and threads was reached", "Raise it (ulimit -u; pids.max of the container's cgroup), or start fewer: set OMP_NUM_THREADS=1, and use fewer data loader workers."),
    row(r"PytorchStreamReader failed|UnpicklingError|EOFError: Ran out of input|failed finding central directory|HeaderTooLarge|MetadataIncompleteBuffer|InvalidHeader|file not fully covered"
         r"|[Ii]ndex file doesn't match expected format|\bbad (?:header|version), cannot read|[Ee]rror while deserializing header",
         "a file of the checkpoint or of the data is damaged or cut short, or has another format than expected",
         "Compare its size with those of other ranks and steps, and load an older checkpoint (latest_checkpointed_iteration.txt names the newest). Data: write the .bin and .idx again."),
    row(r"[Mm]issing key(?:s|\(s\))? in .{0,20}(?:state_dict|checkpoint)|\b[Uu]nexpected key(?:s|\(s\))? in|[Ss]ize mismatch (?:for|between saved)\b|KeyError: MetadataIndex\(|[Gg]lobal shape mismatch|Error\(s\) in loading state_dict"
         r"|CheckpointingException|Unable to load .{1,40} from checkpoint\b", _MISFIT, COMPARE_CHECKPOINT),
    row(r"assert \S{0,80}metadata is not None|Error: .{0,300}/\.metadata'?\s?$", "the checkpoint is incomplete: it has no file .metadata, which is written last",
         "An earlier save was interrupted, or this folder is no distributed checkpoint: load an older step. Check that every node sees the folder (ls -la), and that a save in the background has ended."),
    row(r"\b[Mm]issing keys?\b|\b[Uu]nexpected keys?\b", f"{_MISFIT}, or a key is missing from another file", f"See in the traceback which file was read. {COMPARE_CHECKPOINT}", confidence="medium"),
    row(r"\bassert \S{0,60}(?:vocab_file|merge_file|tokenizer_model)|Not found: \".{0,200}\.model\"|\b[Tt]okenizer(?: model| file)?\b(?! class).{0,200} (?:not found|does not exist)",
         "a file of the tokenizer is missing, or the job names none", "Check --tokenizer-type and the files that it needs (--tokenizer-model, or --vocab-file and --merge-file): every node must see them."),
    row(r"\bArrow(?:Invalid|TypeError)\b|DatasetGenerationError|JSON parse error: ", "a file of the training data could not be read: it is damaged, or a column has values of different types in its rows or files",
         "An earlier error of the same traceback names the file. Look at its first rows: every row needs the same fields with the same types (text, not null, number or list). Delete the cache of an earlier try (HF_DATASETS_CACHE)."),
    row(r"JSONDecodeError", "a file that should be JSON is empty, damaged or something else",
         "See in the traceback which file was read, and look at its first line: a failed download or a pointer of Git LFS is no JSON.", confidence="medium"),
    row(r"(?:couldn't connect to|[Cc]an't load|[Mm]ax retries exceeded|Error for url|[Rr]epo id must|not a valid model|does not appear to have|offline mode|LocalEntry|\b(?:40[134]|429)\b).{0,300}(?:huggingface\.co|Hugging ?Face)"
         r"|huggingface\.co.{0,300}(?:[Mm]ax retries exceeded|[Rr]ead timed out|offline mode|not a valid model|resolve|\b(?:40[134]|429)\b)|HF_HUB_OFFLINE|HFValidationError|OfflineModeIsEnabled|GatedRepoError|access a gated repo|RepositoryNotFoundError|LocalEntryNotFoundError|Can't load tokenizer",
         "a model or tokenizer of Hugging Face could not be read",
         "Nodes often have no way out: download it before, set HF_HOME to that folder and HF_HUB_OFFLINE=1. This also ends error 429 (too many requests). "
         "Check the name, and HF_TOKEN for gated models."),
    row(r"FileExistsError|\[Errno 17\]", "a file or folder exists already, often because several ranks made it at the same time",
         "Let one rank make it while the others wait (exist_ok=True, a barrier), and delete what an earlier job left at the path that the line names.", confidence="medium"),
    row(r"FileNotFoundError|\[Errno 2\]", "a file or folder that the job needs is not there",
         "Check that every node, and the container, sees the path that the line names (mounts, HOME). Index files of Megatron's data are built by rank 0: use a --data-cache-path that all nodes share."),
)  # fmt: skip

# The program on the device, and its sizes.
_PROGRAM: tuple[KnownText, ...] = (
    row(r"device-side assert|thread: \[[\d,]{1,40}\] Assertion", "a check inside a GPU kernel failed, usually an index out of range",
         "Run it with CUDA_LAUNCH_BLOCKING=1, which names the call. Compare the largest token id with the vocabulary size."),
    row(r":\d{1,6}: .{1,1000}: Assertion .{1,500} failed|\bAssertion [`'].{1,500}' failed|\bAssertion error \S{1,300}:\d{1,6} '", "a check inside native code failed",
         "The line has the file, the function and the check. Switch off the feature that this library is for (DeepEP or HybridEP: the dispatcher alltoall), and try another release of it."),
    row(r"illegal memory access|(?:cudaErrorIllegalAddress|CUDA_ERROR_ILLEGAL_ADDRESS)|misaligned address|unspecified launch failure|illegal instruction was encountered|Memory access fault by GPU|invalid program counter"
         rf"|CUDA_ERROR_HARDWARE_STACK_ERROR|hardware stack error|{_XID}{_XIDS_OF_PROGRAM}", "a GPU kernel of the program accessed memory outside its buffers",
         "Run it with CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer, which name the kernel; then without CUDA graphs."),
    row(r"CUDA_ERROR_CONTAINED|Invalid access of peer GPU memory over nvlink", "an access to another GPU's memory over NVLink failed: the program used a wrong address, or the hardware has a fault",
         "See the kernel's log of that node (dmesg). If Xid 137 comes first, it is usually the program (DeepEP, NVSHMEM, symmetric memory): run it with the dispatcher alltoall. With Xid 48, 74, 95 or "
         "144 to 150 it is the hardware: run the job on another node.", confidence="medium"),
    row(r"peer access is not supported|peer mapping resources exhausted|PeerAccessUnsupported", "two GPUs of the node cannot read each other's memory directly",
         "Run it with NCCL_P2P_DISABLE=1, and with NCCL_SHM_DISABLE=1 if the error stays; both are slower. See nvidia-smi topo -p2p r, and the settings of the virtual machine (IOMMU, ACS)."),
    row(r"when stream is capturing|previous error during capture|captures_underway|cudaErrorStreamCapture|dependency created on uncaptured work", "a CUDA graph could not be captured",
         "Run it without CUDA graphs (cuda_graph_impl=none), then with a narrower cuda_graph_scope: a captured part synchronises or copies to the host."),
    row(r"Triton.{0,300}out of resource|OutOfResources: out of resource", "a Triton kernel needs more shared memory than this type of GPU has",
         "Use a release of the library with blocks for this GPU, or smaller blocks or fewer num_stages; then run it without that kernel. It is not the memory of the GPU that ran out."),
    row(r"PassManager::run failed|(?:(?P<what>\w{1,60}(?:Error|Exception)\(.{1,160}\)) )?\b[\w.]{0,60}CompilationError: at \d|BackendCompilerFailed|InductorError\b|torch\._dynamo\.exc\.\w+:", "Triton or torch.compile could not compile a kernel", COMPILER_ADVICE),
    row(r"No (?:valid )?(?:execution plans?|engine configs?)\b|CUDNN_STATUS_NOT_SUPPORTED|CUDNN_STATUS_EXECUTION_FAILED|No dot product attention", "cuDNN or transformer-engine found no attention that works here",
         "Run it with NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2, which say why each attention was refused, then with another one (NVTE_FUSED_ATTN=0, --attention-backend flash). "
         "Check that only one cuDNN is on the path (LD_LIBRARY_PATH, pip list), and that it is the one that torch was built with."),
    row(r"cuDNN [Ee]rror|CUDNN_STATUS_", "a call of cuDNN failed",
         "Run it with CUDA_LAUNCH_BLOCKING=1: an earlier kernel may be the cause. Check that only one cuDNN is on the path (LD_LIBRARY_PATH, pip list). If it was an attention "
         "(the traceback shows it), NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2 say why each was refused.", confidence="medium"),
    row(r"FlashAttention .{0,40}only supports? .{0,80}(?:head dim|fp16|bf16|data type)|[Hh]ead dim(?:ension)? .{0,60}(?:not supported|at most)",
         "flash attention does not have a kernel for this head size or data type",
         "Use bf16 or fp16, and a head dimension that the message allows; or choose another implementation (--attention-backend fused or unfused, NVTE_FLASH_ATTN=0)."),
    row(r"CUBLAS_STATUS_NOT_INITIALIZED|CUBLAS_STATUS_\w{1,40} when calling .?cublasCreate|cuBLAS [Ee]rror: the library was not initialized",
         "cuBLAS could not start on the GPU. Most often the GPU's memory is full. Other causes: an earlier error of this process, or a driver or cuBLAS of the wrong version",
         "Look at the memory of that GPU (nvidia-smi; other processes too), and try a smaller micro-batch. Then run it with CUDA_LAUNCH_BLOCKING=1: an index out of range in an earlier kernel also ends here. "
         "Check that only one cuBLAS is on the path (LD_LIBRARY_PATH).", "unknown", confidence="low"),
    row(r"CUBLAS_STATUS_(?:INVALID_VALUE|NOT_SUPPORTED|ARCH_MISMATCH)|cuBLAS [Ee]rror: (?:an unsupported value|the functionality is not supported|an absent device)|[Uu]nable to find (?:a |any )?suitable (?:cuBLAS )?(?:GEMM )?algorithm",
         "cuBLAS has no kernel for a matrix product with these sizes, layouts or types on this GPU",
         "Print the shapes of that call: FP8 needs sizes that are multiples of 16, and a product of no rows (an expert without tokens) may be refused. Check that only one cuBLAS is on the path "
         "(LD_LIBRARY_PATH), and that it is the one that torch and transformer-engine were built with."),
    row(r"CUBLAS_STATUS_|cuBLAS [Ee]rror", "cuBLAS failed",
         "Run it with CUDA_LAUNCH_BLOCKING=1: an earlier kernel may be the cause, such as an index out of range."),
    row(r"\bFP8 execution\b.{0,200}(?:divisible by|% ?\d)|% ?MXFP8_BLOCK|\bMXFP8\b.{0,200}\b(?:divisible by|multiple of)", "a size does not fit FP8, which takes multiples of 8 or 16 (MXFP8: of 32)",
         "The line has the sizes. Pad the sequence, the vocabulary or the tokens of each expert (--moe-router-padding-for-fp8), or leave that layer out of FP8."),
    row(rf"Error: (?=.{{0,560}}(?:divisible by|multiple of)\b).{{0,300}}\b(?:{_SIZES})\b.{{0,200}}\b(?:divisible by|multiple of)\b|Error: .{{0,300}}\b(?:divisible by|multiple of)\b.{{0,200}}\b(?:{_SIZES})\b",
         _UNEVEN, _CHECK),
    row(r"Error:? assert .{1,200}%.{1,200}== ?0\b|Error: .{1,200}%.{1,200}== ?0 ?INTERNAL ASSERT", _UNEVEN, f"See the two sizes in the assert. {_CHECK}", confidence="medium"),
    row(r"Error: .{0,300}\b(?:divisible by|multiple of|must be a whole number)\b", _UNEVEN, f"See which sizes the line names. {_CHECK}", confidence="medium"),
    row(r"[Ss]plit sizes doesn't match|split_with_sizes expects", "the parts of a split do not add up to the tensor: tokens were counted in two ways",
         "Compare the counts of all ranks. With experts, the routing must be the same everywhere (replay, capacity, padding); with packed sequences, the lengths must add up with their padding."),
    row(r"[Ss]ize of tensor a \(\d{1,20}\) must match the size of tensor b|shapes cannot be multiplied \(|shape '\[[\d, -]{1,200}\]' is invalid for input of size", "the sizes of two tensors do not fit together",
         "The line has the sizes. If one is a multiple of the other, one tensor is split over ranks and the other is not, or over another number of ranks: compare TP, EP and the data-parallel size with "
         "those of the checkpoint or of the conversion. A size of 0 belongs to a rank or an expert without tokens. Otherwise compare the lengths of the batch and the sizes of the model.", confidence="medium"),
    row(r"[Ee]xpected .{0,100}\bdtype\b.{0,60}\b(?:match|same|but)\b|must have the same dtype|[Ee]xpected (?:scalar type|m1 and m2 to have the same dtype|object of scalar type)|both vectors to have same dtype", "two tensors of a call have different number formats (dtypes)",
         "Run everything in one format: --bf16 for the model, autocast around the call, and adapters, masks and loaded weights cast to the same type.", confidence="medium"),
    row(r"Error: .{0,200}\b(?:Float8\w{0,20}|MXFP8|NVFP4)(?:Quantized)?Tensor\b|Error: .{0,200}\bGEMM_READY\b", "transformer-engine refused an FP8 or FP4 tensor in this call",
         "Try another recipe (--fp8-recipe tensorwise or delayed), leave out --fp8-param-gather, and try another release of transformer-engine. To confirm: run it with -c bf16.", confidence="medium"),
    row(r"Check batch related parameters|train_batch_size is not equal to", "the batch sizes contradict each other",
         "The global batch size must be micro-batch x accumulated micro-batches x data-parallel ranks. The line has the values: look at the number of ranks first."),
    row(r"DataLoader worker (?:\(pid\(?s?\)?[ \d,]{1,200}\) )?exited unexpectedly", "a data loader worker ended without a message",
         "Run it with no workers (--num-workers 0), which shows the error of the data. If it then runs, look for a lack of host memory (dmesg) or of /dev/shm.", confidence="medium"),
    row(r"DataLoader worker .{0,200}killed by signal: \w", "a data loader worker crashed in native code, or was ended from outside",
         "Run it with no workers (--num-workers 0) and PYTHONFAULTHANDLER=1, which name the line that reads the data. The GPU is not the suspect.", confidence="medium"),
    row(r"[Cc]urrent loss scale already at minimum", "the loss scale of FP16 fell to its minimum: the gradients overflowed in every step",
         NOT_FINITE_ADVICE),
    row(r"different metadata (?:than during|from) the forward|[Aa] different number of tensors was saved during", "recompute gave other tensors than the first forward pass",
         "The recomputed part depends on something that changed in between: random numbers, autocast, a cache, or a branch. Run it without recompute of that module, and with determinism_check."),
    row(r"mark a variable ready only once|finished reduction in the prior iteration", "a parameter got no gradient, or got it twice, in a step of data parallelism",
         "Find parameters that the loss does not use (TORCH_DISTRIBUTED_DEBUG=DETAIL names them), and shared ones under recompute: use non-reentrant checkpoints."),
    row(r"CUDA error: initialization error", "CUDA could not be used in this process, usually because it was forked after its parent had used CUDA",
         "Start workers with the method spawn (multiprocessing_context), and touch no CUDA tensor in a data set. If no process was forked, see whether nvidia-smi works on that node.", confidence="medium"),
    row(r"Cannot re-initialize CUDA in forked subprocess", "a forked process used CUDA after its parent had initialized CUDA",
         "Start workers with the method spawn (multiprocessing_context), and touch no CUDA tensor in a data set or before the fork."),
    row(r"expects same model across all ranks", "the ranks built different models",
         "Compare the settings and the code of the two ranks that the line names, also environment variables and files that only one node sees."),
    row(r"group (?:is|has) not (?:been )?initiali[sz]ed", "a process group was used before it was initialized",
         "Call megatron's initialize_megatron or initialize_model_parallel first, and start the job with torchrun, which sets RANK and WORLD_SIZE."),
)  # fmt: skip

# Errors and reports that leave the cause open.
_REPORTS: tuple[KnownText, ...] = (
    row(r"CUDA driver error: invalid argument", "a call of the CUDA driver failed: invalid argument; where expandable segments are on, old drivers report a full GPU this way",
         "Run it without expandable_segments:True: if the GPU is full, torch then says so, with figures. Otherwise compare the driver with the CUDA of torch (nvidia-smi, torch.version.cuda).",
         "unknown", confidence="low"),
    row(r"(?:(?:CUDA|HIP)(?: driver)? error|Triton Error \[\w{2,8}\]): (?P<what>(?!out of memory)[a-zA-Z][^\n]{0,100}?)(?:\.? (?:CUDA|HIP|Search for|For debugging|Compile with)|$)", "a call of CUDA failed",
         "Run it with CUDA_LAUNCH_BLOCKING=1, which names the call: an earlier kernel may be the cause. See that the GPU is well (dmesg, lines with Xid).", confidence="medium"),
    row(r"Connection closed by localRank (?P<what>\d{1,4})", "NCCL reports only that a process closed its connections, as processes also do when a job ends. Local rank",
         "Read the log of that local rank to its end, and the kernel's log of the node (dmesg).", "unknown", confidence="low"),
    row(r"\.(?:cpp|cuh?|h):\d{1,6} in function .{1,100}?: (?:Assertion failed: )?(?P<what>\S.{0,250})", "an extension such as transformer-engine refused a call",
         "Compare the shapes and types of that call with what the layer takes: empty inputs and odd sizes are usual causes. Then try another release of the extension.", confidence="medium"),
    row(r"INTERNAL ASSERT FAILED at .{0,200}CUDACachingAllocator", "a check inside torch's allocator failed",
         "If expandable segments are on, run it without them. Then run it without CUDA graphs and without another allocator. An earlier error of this process may also end here.", confidence="medium"),
    row(r"INTERNAL ASSERT FAILED", "a check inside torch or an extension of it failed",
         "The line has the check and its file. Look for libraries of different releases (mbr-perf doctor), and for an earlier error of another rank; then search that project's issues for the check.", confidence="medium"),
    row(r"what\(\): {0,4}(?P<what>\S.{0,160})", "native code threw an exception that nothing caught, and the process aborted",
         "The frames below the line, if there are any, name the library. Run it with PYTHONFAULTHANDLER=1, which names the Python line.", confidence="medium"),
    row(r"DUE TO TASK FAILURE", "Slurm ended the step because a task of it failed; these lines do not show why",
         "srun lists the tasks that it terminated. The task that this list lacks failed first. Read the log of its ranks.", "unknown", confidence="low"),
    row(r"(?:JOB|STEP) \S{1,40} ON \S{1,200} CANCELLED AT \S{1,40} \*\*\*", "Slurm cancelled the job or the step: a user ran scancel, or srun ended it because a task had failed",
         "See the log before it for the task that failed first. If there is none, ask who cancelled it: sacct -j JOB --format=JobID,State,ExitCode,End shows CANCELLED by UID.", "unknown", confidence="low"),
    row(_VLLM, "vLLM reports only that its engine or a worker of it ended; the log of that process has the reason",
         "Read the lines of that process before this one (EngineCore, VllmWorker), and the node's dmesg: the kernel may have ended it. A trainer on the same GPU may have taken its memory.", "unknown", confidence="low"),
    row(_RAY, "Ray reports only that a worker process ended; the log of that worker has the reason",
         "Read the worker's own log (session_latest/logs/worker-*.err on its node), and the node's dmesg: the kernel may have ended it.", "unknown", confidence="low"),
)  # fmt: skip

_SIGNAL_ENDS: tuple[KnownText, ...] = (
    row(r"[Ss]egmentation fault|[Cc]aught signal 11|SIGSEGV", "native code crashed (SIGSEGV)",
         "Run it with PYTHONFAULTHANDLER=1, which names the Python line. Then look for an extension that was built for "
         "another torch or CUDA (transformer-engine, apex, flash-attn)."),
    row(r"\b[Bb]us error|[Cc]aught signal 7\b|SIGBUS", "native code crashed (SIGBUS)",
         "Check shared memory (df -h /dev/shm; containers: --shm-size or --ipc=host) and the disk of memory-mapped data: a reader gets SIGBUS if it is full or lost."),
    row(r"[Ii]llegal instruction|SIGILL", "native code crashed (SIGILL)",
         "An extension was built for another processor: install a build for this processor."),
    row(r"Floating point exception|SIGFPE", "native code crashed (SIGFPE)",
         "Run it with PYTHONFAULTHANDLER=1, which names the Python line: a library divided by zero."),
    row(r"terminate called|Fatal Python error: Aborted|\bAborted\b|SIGABRT", "native code aborted (SIGABRT)",
         "Read the lines before it: an uncaught C++ exception, or torch ending a rank that waited too long for others."),
    row(r"SIGHUP|got signal: 1\b|Received (?:1|Signals\.SIGHUP) death signal", "the terminal of the job was closed (SIGHUP)",
         "Start it with sbatch, or inside tmux; nohup does not help, because torchrun handles SIGHUP itself."),
    row(r"SIGINT|KeyboardInterrupt|got signal: 2\b|Received (?:2|Signals\.SIGINT) death signal", "the job was interrupted (SIGINT), as Ctrl-C does",
         "If nobody pressed Ctrl-C, a program sent the signal: see what the log shows before it. The stack shows where the program was, which helps if it hung."),
    row(r"SIGTERM|got signal: 15\b|Received (?:15|Signals\.SIGTERM) death signal", "the process was ended from outside",
         "Find out who ended it: a user, the scheduler, or a launcher after another rank failed."),
)  # fmt: skip
# The first row that matches counts: who ended the job, the device, the program, then reports about other ranks.
_CAUSES: tuple[KnownText, ...] = (*_JOB_ENDS, *_NEEDS, *_PROGRAM, *NETWORK_ENDS, *_REPORTS)
KNOWN_ENDS: tuple[KnownText, ...] = (*_CAUSES, *_SIGNAL_ENDS)
# The signals that a row explains, by the name in the row.
_SIGNALS = {1: "SIGHUP", 2: "SIGINT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 11: "SIGSEGV", 15: "SIGTERM"}
# Messages of megatron-core's checks of gradients and losses, and of its rerun state machine.
_NON_FINITE = re.compile(
    r"found (?P<found>NaN|Inf) in local (?:grad norm|forward loss)|Unexpected result (?P<result>nan|-?inf)\b"
    r"|\bvalidation loss at .{0,80}\blm loss value: (?P<validation>nan|NAN|-?inf|-?INF)\b|\b[Bb]ad grad[_ ]norm detected|\b(?:loss|grad[_ ]norm) (?:is|was|became) (?P<said>nan|NaN|-?inf)\b|\bDetected (?P<activation>inf/nan) during\b"
)
# Errors of any program about such a value.
_REFUSED = re.compile(
    r"\b\w{1,60}(?:Error|Exception): (?:.{0,200}[^\w.])?(?P<value>[Nn]a[Nn]|NAN|[Ii]nf|infinite|non-?finite|not finite)\b"
)
_RANK = re.compile(r"\b[Rr]ank (\d{1,6})\b")
_ITERATION = re.compile(r"\biteration ?[#=]?(\d{1,9})\b")


def known_end(text: str) -> OomVerdict | None:
    """Return the verdict of the first row that matches; None without a match. Keep Slurm's own text as the reason."""
    for each in KNOWN_ENDS:
        if match := each.pattern.search(text):
            slurm_text = first_line(text)[:300] if text.startswith("Slurm: ") else ""
            what = match.groupdict().get("what")
            reason = slurm_text or f"{each.reason}{f': {what}' if what else ''}{named_in(text, each.reason)}"
            return OomVerdict(each.oom_class, each.confidence, reason, advice=each.advice)
    return None


def for_precision(verdict: OomVerdict, compute_dtype: str) -> OomVerdict:
    """Return the verdict without advice on FP8 if the job does not use FP8. ``compute_dtype``: empty if unknown."""
    is_plain = compute_dtype == "bf16" and verdict.advice == NOT_FINITE_ADVICE
    return replace(verdict, advice=_NOT_FINITE_IN_BF16) if is_plain else verdict


def names_cause(text: str) -> bool:
    """Return whether a row matches that explains more than a signal."""
    return any(each.pattern.search(text) for each in _CAUSES)


def end_by_signal(exit_code: int | None) -> OomVerdict | None:
    """Return the verdict for a signal's exit code (negative or above 128); None for other codes and for SIGKILL."""
    if exit_code is None:
        return None
    name = _SIGNALS.get(-exit_code if exit_code < 0 else exit_code - 128)
    return known_end(name) if name else None


def is_non_finite(text: str) -> bool:
    """Return whether the line reports a result that is not finite."""
    return _match_of(text) is not None


def _match_of(text: str) -> re.Match[str] | None:
    is_error = "Error: " in text or "Exception: " in text  # cheap, for the many lines that are none
    return _NON_FINITE.search(text) or (_REFUSED.search(text) if is_error else None)


def rank_in(text: str) -> int | None:
    """Return the rank that such a line names."""
    match = _RANK.search(text)
    return int(match[1]) if match else None


def non_finite(text: str) -> OomVerdict | None:
    """Return the verdict on such a line, with rank and iteration; None for other lines."""
    match = _match_of(text)
    if match is None:
        return None
    what = "a gradient" if "grad" in text else "the loss" if "loss" in text.lower() else "a result"
    what = "the validation loss" if match.groupdict().get("validation") else what
    rank, iteration = rank_in(text), _ITERATION.search(text)
    where = f" on rank {rank}" if rank is not None else ""
    when = f" at iteration {iteration[1]}" if iteration else ""
    value = next(filter(None, match.groups()), "")
    reason = f"{what} was not finite{f' ({value})' if value else ''}{where}{when}"
    return OomVerdict("not_oom", "high", reason, advice=NOT_FINITE_ADVICE)
