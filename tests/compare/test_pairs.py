"""`mbr-perf compare A B`: every kind of A against every kind of B."""

import gzip
import json
import re
from itertools import product

import pytest

from harness.compare.foreign import ForeignRequest
from harness.compare.show import followed
from harness.imports.sides import side_of
from harness.records.golden import golden_text
from harness.records.store import write_record
from tests.compare.test_compare_logs import bridge_golden, megatron_lm_golden
from tests.imports.logs import bridge_log, megatron_lm_log, memory_gb

RUN_ID = "20260102T030405Z-llama3_70b-0a1b2c3d"
LOGS = {"log": (50, 50), "unfinished": (30, 500_000)}


@pytest.fixture(name="side")
def _side(tmp_path, make_record, make_golden):
    """Write a side of a kind, whose steps take ``seconds``, and return its path."""

    def write(kind, seconds, name):
        path = tmp_path / f"{name}.{kind}"
        if kind in LOGS or kind == "gzip":
            steps, total = LOGS.get(kind, (50, 50))
            text = megatron_lm_log([seconds] * steps, [1750.0 / seconds] * steps, total=total)
            text = "using world size: 32\n" + text.replace("global batch size:   128", "global batch size:    32")
            path.write_bytes(gzip.compress(text.encode()) if kind == "gzip" else text.encode())
        elif kind == "folder":
            path.mkdir()
            (path / "a.log").write_text(bridge_log([1750.0 / seconds] * 50))
        elif kind == "run":
            path = tmp_path / name / RUN_ID
            path.mkdir(parents=True)
            write_record(path, make_record(seconds=seconds, run_id=RUN_ID))
        elif kind == "runs":  # of which the one in the middle counts
            for place, each in enumerate((seconds, 0.9 * seconds, 9.9)):
                (path / f"run{place}").mkdir(parents=True)
                write_record(path / f"run{place}", make_record(seconds=each, run_id=RUN_ID))
        elif kind == "own":
            values = {"step_time_s": seconds, "tflops_per_gpu": 1775.0 / seconds}
            path.write_text(golden_text(make_golden(make_record(), values)))
        elif kind == "bridge":
            path.write_text(json.dumps(bridge_golden([1750.0 / seconds] * 50)))
        else:
            path.write_text(json.dumps(megatron_lm_golden([seconds] * 50)))
        return path

    return write


@pytest.mark.parametrize(
    ("a", "b", "codes"),
    [  # exit codes of an equal and of a slower A
        ("log", "log", (0, 5)),
        ("gzip", "log", (0, 5)),
        ("log", "gzip", (0, 5)),
        ("folder", "folder", (0, 5)),
        ("folder", "bridge", (0, 5)),
        ("log", "bridge", (0, 5)),
        ("log", "own", (0, 5)),
        ("log", "run", (6, 5)),  # the log has no memory, the run has
        ("run", "log", (0, 5)),
        ("runs", "log", (0, 5)),
        ("log", "runs", (6, 5)),
        ("run", "run", (0, 5)),
        ("run", "own", (0, 5)),
        ("unfinished", "log", (6, 5)),
        ("log", "unfinished", (6, 5)),
        ("unfinished", "unfinished", (6, 5)),
        ("unfinished", "bridge", (6, 5)),
        ("unfinished", "own", (6, 5)),
        ("unfinished", "run", (6, 5)),
        ("run", "unfinished", (6, 5)),
        ("log", "megatron_lm", (6, 6)),  # states neither GPUs nor batch
        ("run", "bridge", (6, 6)),  # states throughput by another formula, and not its GPUs
    ],
)
def test_a_is_judged_against_b(mbr_perf, side, a, b, codes):
    for turn, (seconds, code) in enumerate(zip((2.5, 2.8), codes, strict=True)):
        ours, theirs = side(a, seconds, f"a{turn}"), side(b, 2.5, f"b{turn}")
        answer = mbr_perf("compare", ours, theirs, "--json")
        document = json.loads(answer.out)
        assert (answer.code, document["exit_code"]) == (code, code), document["comparison"]
        speeds = {row["metric"]: row["change"] for row in document["comparison"] if row["change"] is not None}
        rate = speeds.get("tflops_per_gpu", 2.5 / (1 + speeds["step_time_s"]) / 2.5 - 1 if speeds else 0)
        assert code == 6 or rate == pytest.approx(2.5 / seconds - 1, abs=0.02), speeds
    assert len(mbr_perf("compare", ours, theirs, "-q").out.splitlines()[0]) <= 160


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("slurmstepd: error: *** STEP 4711.0 ON n07 CANCELLED AT 2026-01-31T10:00:00 DUE TO TIME LIMIT ***", 5),
        ("KeyboardInterrupt", 5),
        ("[rank3]: torch.OutOfMemoryError: CUDA", 6),
    ],
)
def test_a_job_that_its_user_or_its_time_limit_ended_is_judged(mbr_perf, side, ending, code):
    ours = side("unfinished", 2.8, "a")
    ours.write_text(ours.read_text() + ending + "\n")
    answer = mbr_perf("compare", ours, side("log", 2.5, "b"), "--json")
    document = json.loads(answer.out)
    change = next(row["change"] for row in document["comparison"] if row["metric"] == "tflops_per_gpu")
    assert (answer.code, change) == (code, pytest.approx(2.5 / 2.8 - 1))
    assert " iteration 30 of 500000" in document["provisional"][0]


def test_settings_that_two_logs_print_differently_are_listed_and_the_likeliest_cause_first(mbr_perf, side):
    def arguments(rows):
        lines = "\n".join(f"  {name} {'.' * 30} {value}" for name, value in rows.items())
        return f"------------------------ arguments ------------------------\n{lines}\n--- end of arguments ---\n"

    common = {
        "num_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "world_size": 32,
        "bf16": True,
        "log_interval": 1,
    }
    ours, theirs = side("log", 2.8, "a"), side("log", 2.5, "b")
    common["hf_token"] = "hf_abcdefghijklmnopqrstuvwxyz"
    ours.write_text(arguments({**common, "micro_batch_size": 1, "recompute_granularity": "full",
                               "recompute_method": "uniform", "recompute_num_layers": 1}) + ours.read_text())  # fmt: skip
    other = {
        "micro_batch_size": 2,
        "log_interval": 2,
        "hf_token": "hf_zyxwvutsrqponmlkjihgfedcba",
        "db": "pg://u:pw1@h",
    }
    theirs.write_text(arguments({**common, **other}) + theirs.read_text())
    settings = json.loads(mbr_perf("compare", ours, theirs, "--json").out)["settings"]
    assert not [text for text in settings if "hf_" in text.partition(":")[2] or "pw1" in text]
    names = [text.partition(":")[0] for text in settings]
    assert (names[:2], names[-1]) == (["recompute", "batch.micro_batch_size"], "log_interval")


def test_a_reference_without_an_iteration_is_refused(mbr_perf, side, tmp_path):
    (tmp_path / "train.sh").write_text("torchrun pretrain_gpt.py\n")
    answer = mbr_perf("compare", side("log", 2.5, "a"), tmp_path / "train.sh")
    assert (answer.code, "train.sh: " in answer.err) == (2, True)


def test_line_1_has_the_changes_of_time_and_peak_and_where_the_log_ends(mbr_perf, tmp_path):
    peak = [(1, memory_gb(0, 1, max_allocated=54.9))]
    (tmp_path / "a.log").write_text(megatron_lm_log([2.8] * 30, [625.0] * 30, memory=peak, total=500_000))
    (tmp_path / "b.log").write_text(megatron_lm_log([2.5] * 50, [700.0] * 50, memory=peak))
    line = mbr_perf("compare", tmp_path / "a.log", tmp_path / "b.log").out.splitlines()[0]
    assert re.match(r"REGRESSION: 2\.800 s .*\+12\.0 %; .* 51\.13 GiB, equal\. .* 30 of 500000: provisional", line)


def test_a_golden_is_no_a(mbr_perf, side):
    answer = mbr_perf("compare", side("bridge", 2.5, "a"), side("log", 2.5, "b"))
    assert (answer.code, "mbr-perf compare A B" in answer.err) == (2, True)


def test_a_document_of_a_run_or_of_a_comparison_stands_for_its_run_or_its_log(mbr_perf, side, tmp_path):
    run, log, slower = side("run", 2.5, "r"), side("log", 2.5, "b"), side("log", 2.8, "a")
    (tmp_path / "compared.json").write_text(mbr_perf("compare", log, run, "--json").out)
    (tmp_path / "ran.json").write_text(json.dumps({"schema_version": 1, "run_id": RUN_ID, "run_dir": str(run)}))
    (tmp_path / "other.json").write_text(json.dumps({"schema_version": 1, "verdict": {}}))

    assert (side_of(str(tmp_path / "compared.json")).paths, side_of(str(tmp_path / "ran.json")).paths) == (
        (str(log),), (str(run),),
    )  # fmt: skip
    assert mbr_perf("compare", slower, tmp_path / "ran.json").code == 5
    answer = mbr_perf("compare", slower, tmp_path / "other.json")
    assert (answer.code, "names neither the runs of one setting nor a log" in answer.err) == (2, True)


def test_a_folder_of_runs_stands_for_repeats_on_either_side(mbr_perf, make_record, tmp_path):
    for name, seconds in (("slow", 2.8), ("usual", 2.5)):
        for place in range(3):
            run_id = f"20260102T03040{place}Z-{name}-0a1b2c3d"
            (tmp_path / name / run_id).mkdir(parents=True)
            write_record(tmp_path / name / run_id, make_record(seconds=seconds, run_id=run_id))
    answer = mbr_perf("compare", tmp_path / "slow", tmp_path / "usual", "--json")
    document = json.loads(answer.out)
    change = next(row["change"] for row in document["comparison"] if row["metric"] == "tflops_per_gpu")
    assert (answer.code, len(document["run_ids"]), change) == (5, 3, pytest.approx(2.5 / 2.8 - 1, abs=1e-4))


@pytest.mark.parametrize(
    ("text", "kind"),
    [("[rank0]: iteration\n", "log"), ('{"a": 1}\n{"a": 2}\n', "log"), ('{"0": {"lm loss": 1}}', "foreign")],
)
def test_a_file_is_what_its_text_says(tmp_path, text, kind):
    (tmp_path / "file").write_text(text)
    assert side_of(str(tmp_path / "file")).kind == kind


def test_a_log_is_followed_until_its_job_ends(side):
    ours = side("unfinished", 2.8, "a")
    text, pauses = ours.read_text(), []

    def written_in_the_pause(seconds):
        pauses.append(seconds)
        ours.write_text(text + ("KeyboardInterrupt\n" if len(pauses) > 1 else ""))

    request = ForeignRequest(ours=side_of(str(ours)), golden=side_of(str(side("log", 2.5, "b"))))
    answer = followed(request, written_in_the_pause)
    assert (len(pauses), answer.is_growing, answer.outcome) == (2, False, "regression")


def test_a_pair_has_one_verdict_as_logs_and_as_imported_runs(mbr_perf, tmp_path):
    sizes = {
        "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32,
        "num_query_groups": 8, "seq_length": 4096, "micro_batch_size": 1, "global_batch_size": 128, "bf16": True,
        "world_size": 16, "swiglu": True, "normalization": "RMSNorm", "position_embedding_type": "rope",
        "vocab_size": 128256, "use_distributed_optimizer": True,
    }  # fmt: skip
    full = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    forms = {}
    for name, seconds, more in (("new", 2.2, full), ("ref", 2.0, {})):
        lines = "\n".join(f"  {key} {'.' * (48 - len(key))} {value}" for key, value in {**sizes, **more}.items())
        head = f"------------------------ arguments ------------------------\n{lines}\n"
        head += "-------------------- end of arguments ---------------------\n"
        log, kept = tmp_path / f"{name}.log", tmp_path / name
        log.write_text(head + megatron_lm_log([seconds] * 50, [100.0 / seconds] * 50))
        assert mbr_perf("import", log, "-g", "h100", "--results_dir", kept, "-v").code == 0
        forms[name] = (log, next((kept / "runs").iterdir()))
    found = []
    for ours, theirs in product(*forms.values()):
        answer = mbr_perf("compare", ours, theirs, "--json")
        document = json.loads(answer.out)
        changes = {row["metric"]: row["change"] for row in document["comparison"] if row["change"] is not None}
        found.append((answer.code, changes, [text.partition(":")[0] for text in document["settings"]]))
    assert (found[0][0], found[0][2]) == (5, ["recompute"])
    assert all(each == found[0] for each in found)


def test_a_provisional_pass_names_its_exit_code_in_its_first_line(mbr_perf, side):
    answer = mbr_perf("compare", side("unfinished", 2.5, "a"), side("log", 2.5, "b"), "-q")
    assert (answer.code, answer.out.partition(": ")[0]) == (6, "PROVISIONAL PASS (exit 6)")


def test_line_1_begins_with_another_figure_that_decides(mbr_perf, tmp_path):
    for name, reserved in (("a", 72.36), ("b", 64.55)):
        peak = [(1, memory_gb(0, 1, max_allocated=54.9, max_reserved=reserved))]
        (tmp_path / f"{name}.log").write_text(megatron_lm_log([2.5] * 50, [700.0] * 50, memory=peak))
    answer = mbr_perf("compare", tmp_path / "a.log", tmp_path / "b.log", "-q")
    assert answer.code == 5
    first, *others = answer.out.split("; ")
    assert (first[:26], first.partition(", ")[2]) == ("REGRESSION: peak reserved ", "+12.1 %")
    assert [text.partition(", ")[2] for text in others] == ["equal", "equal.\n"]
