"""Lines out of logs of any origin: whose they are, where they stand, and what was refused."""

import sys
import tarfile

import pytest

from harness.foreign.logs.lines import LogLine, log_lines
from harness.foreign.logs.sieve import MAX_PIECE_BYTES
from harness.foreign.logs.sources import rank_in_path
from tests.commands import refused


def written(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(folder, content):
    return list(log_lines([written(folder, "train.log", content)]))


def texts(folder, content):
    return [line.text for line in read(folder, content)]


def test_a_line_knows_its_file_and_number(tmp_path):
    path = written(tmp_path, "train.log", "one\n\nthree")
    assert list(log_lines([path])) == [LogLine("one", str(path), 1), LogLine("three", str(path), 3)]
    assert [line.where for line in log_lines([path])] == [f"{path}:1", f"{path}:3"]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\x1b[31mred\x1b[0m and \x1b[1;32mgreen\x1b[m", "red and green"),
        (b"\x1b]0;title\x07text", "text"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"cut \x1b[3", "cut [3"),
        (b"caf\xe9 closed", "caf\ufffd closed"),
        ("Zürich 10 µs".encode(), "Zürich 10 µs"),
        (b"a\x00b\x08c\x7fd", "abcd"),
        ("\u202eout of memory\u202c".encode(), "out of memory"),
        (b"\x00\x00\x00after a hole", "after a hole"),
    ],
)
def test_colours_and_control_characters_are_gone_and_what_is_no_utf8_is_marked(tmp_path, raw, text):
    assert texts(tmp_path, raw + b"\n") == [text]


@pytest.mark.parametrize(
    ("line", "rank", "host", "time", "text"),
    [
        ("[rank3]: Traceback (most recent call last):", 3, None, None, "Traceback (most recent call last):"),
        ("[default3]:starting", 3, None, None, "starting"),
        ("[node-07:3]:starting", 3, None, None, "starting"),
        ("2026-01-02T03:04:05.678Z: [1,12]<stdout>:starting", 12, None, "2026-01-02T03:04:05.678Z", "starting"),
        ("2026-01-02 03:04:05.678 +08:00 [rank3]: starting", 3, None, "2026-01-02 03:04:05.678 +08:00", "starting"),
        ("[core.py:3]: starting", None, None, None, "[core.py:3]: starting"),
        ("[Epoch:3]: loss 2.5", None, None, None, "[Epoch:3]: loss 2.5"),
        ("[default3]:[rank11]: RuntimeError: x", 11, None, None, "RuntimeError: x"),
        (" [2026-08-21 14:03:27] iteration 2/ 50 |", None, None, "2026-08-21 14:03:27", "iteration 2/ 50 |"),
        ("[2026-08-21 14:03:27.481093] iteration 2/", None, None, "2026-08-21 14:03:27.481093", "iteration 2/"),
        ("2026-08-21 14:03:27,123 - megatron.core - WARNING - slow", None, None, "2026-08-21 14:03:27,123", "slow"),
        ("2026-08-21T14:03:27Z | INFO     | a.b:run:12 - up", None, None, "2026-08-21T14:03:27Z", "up"),
        ("INFO:megatron.core.timers:done", None, None, None, "done"),
        ("[NeMo W 2026-08-21 14:03:27 nemo_logging:349] hm", None, None, "2026-08-21 14:03:27", "hm"),
        ("[NeMo I 2026-08-21 14:03:27 rank:7 megatron_init:234] up", 7, None, "2026-08-21 14:03:27", "up"),
        ("node-07.cluster:1234:1290 [3] NCCL WARN gone", None, "node-07.cluster", None, "NCCL WARN gone"),
        ("n1:1234:1290 [3] include/alloc.h:228 NCCL WARN gone", None, "n1", None, "include/alloc.h:228 NCCL WARN gone"),
        ("[rank2]:[W1121 12:00:00.1 ProcessGroupNCCL.cpp:1496] x", 2, None, None,
         "[W1121 12:00:00.1 ProcessGroupNCCL.cpp:1496] x"),
        ("12:30: not a label", None, None, None, "12:30: not a label"),
        ("[Rank 0] (after 2 iterations) memory (GB)", None, None, None, "[Rank 0] (after 2 iterations) memory (GB)"),
    ],
)  # fmt: skip
def test_what_launchers_and_loggers_put_before_a_line_is_taken_off_and_understood(
    tmp_path, line, rank, host, time, text
):
    read_back = read(tmp_path, line + "\n")[0]
    assert (read_back.rank, read_back.host, read_back.time, read_back.text) == (rank, host, time, text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        # labels of srun are ranks where each rank is a task
        ("0: up\n1: up\n3: lost\n1: 2: not a second label\n",
         [(0, None, "up"), (1, None, "up"), (3, None, "lost"), (1, None, "2: not a second label")]),
        # and nodes where torchrun starts the ranks: which rank of the job the second on a node is, nothing tells
        ("0: [default1]:up\n1: [default1]:up\n1: [default0]:[rank4]: lost\n1: by the agent\n",
         [(1, "task 0", "up"), (None, "task 1", "up"), (4, "task 1", "lost"), (None, "task 1", "by the agent")]),
        # a glued record is its own rank's, and any other the line's
        ("[rank0]: half a line[rank5]: RuntimeError: lost\n[rank2]: {}\n",
         [(0, None, "half a line"), (5, None, "RuntimeError: lost"), (2, None, "{}")]),
    ],
    ids=["srun starts ranks", "srun starts torchrun", "glued"],
)  # fmt: skip
def test_every_line_belongs_to_the_rank_that_its_labels_name(tmp_path, text, found):
    assert [(line.rank, line.host, line.text) for line in read(tmp_path, text)] == found


def test_a_numbered_list_is_no_log_of_srun(tmp_path):
    assert [line.rank for line in read(tmp_path, "1: first\n2: second\n3: third\n")] == [None, None, None]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Step Time : 8.92s GPU utilization: 744.1MODEL_TFLOP/s/GPU [2026-08-21 14:03:27] iteration       12/      50 |",
         ["Step Time : 8.92s GPU utilization: 744.1MODEL_TFLOP/s/GPU", "iteration       12/      50 |"]),
        ("loading[rank1]: Traceback (most recent call last):", ["loading", "Traceback (most recent call last):"]),
        ("a |[Rank 3] (after 2 iterations) memory (GB) | b", ["a |", "[Rank 3] (after 2 iterations) memory (GB) | b"]),
    ],
)  # fmt: skip
def test_records_glued_to_one_line_come_apart(tmp_path, line, expected):
    assert texts(tmp_path, line + "\n") == expected


def test_a_line_without_end_comes_in_pieces_that_lose_nothing(tmp_path):
    words = [f"word{number}" for number in range(40_000)]
    lines = read(tmp_path, "begin\n" + " ".join(words) + "\nend\n")
    middle = [line for line in lines if line.number == 2]
    assert len(middle) > 1
    assert max(len(line.text) for line in middle) <= MAX_PIECE_BYTES
    assert "".join(line.text for line in middle).replace(" ", "") == "".join(words)
    assert (lines[-1].text, lines[-1].number) == ("end", 3)


def test_a_folder_gives_its_logs_in_the_order_of_their_ranks(tmp_path):
    for rank in (10, 9, 0):
        written(tmp_path, f"logs/rank_{rank:d}.log", f"i am {rank}\n")
    written(tmp_path, "logs/config.json", "{}")
    assert [line.rank for line in log_lines([tmp_path / "logs"])] == [0, 9, 10]


def test_a_file_named_twice_is_read_once(tmp_path):
    path = written(tmp_path, "logs/rank_0.log", "once\n")
    assert len(list(log_lines([tmp_path / "logs", path, path]))) == 1


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("rank_003.log", 3),
        ("train-rank12.err", 12),
        ("task-7.out", 7),
        ("slurm-4711-3.out", 3),
        ("slurm-4711_3.out", None),
        ("slurm-4711.out", None),
        ("crank_5.log", None),
        ("none_x/attempt_0/3/stdout.log", 3),
        ("attempt_0/3/other.log", None),
        ("llama3_8b.log", None),
    ],
)
def test_a_files_name_tells_the_rank_where_launchers_write_it_so(tmp_path, path, rank):
    assert rank_in_path(tmp_path / path) == rank


def test_standard_input_is_read_where_a_dash_is_given(tmp_path, monkeypatch):
    with written(tmp_path, "piped.log", "[rank1]: piped\n").open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert list(log_lines(["-"])) == [LogLine("piped", "<stdin>", 1, rank=1)]


def test_a_closed_standard_input_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    refused(lambda: log_lines(["-"]), "closed")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\x1f\x8b\x08rest", "compressed (gzip)"),
        (b"PK\x03\x04rest", "binary"),
        (b"\x80\x04\x95rest", "binary"),
        (b"\xff\xfe" + b"\x00\xd8" * 500, "binary"),
        (bytes(range(128, 256)) * 8, "binary"),
    ],
)
def test_what_is_no_text_is_refused_in_words(tmp_path, content, what):
    path = written(tmp_path, "train.log", content)
    (problem,) = refused(lambda: log_lines([path]), str(path), what)
    assert problem.remedy


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_an_archive_of_logs_is_no_log(tmp_path, mode):
    path = tmp_path / "logs.tar"
    with tarfile.open(path, mode) as archive:
        archive.add(written(tmp_path, "train.log", "up\n" * 9000))
    refused(lambda: log_lines([path]), str(path), "archive")


def test_a_device_is_no_log():
    refused(lambda: list(log_lines(["/dev/zero"])), "/dev/zero")


def test_all_that_cannot_be_read_is_named_before_the_first_line(tmp_path):
    good = written(tmp_path, "good.log", "fine\n")
    packed = written(tmp_path, "packed.log", b"\x1f\x8b\x08")
    empty = tmp_path / "empty"
    empty.mkdir()
    bad = [tmp_path / "missing.log", empty, packed]
    problems = refused(lambda: log_lines([good, *bad]), num=3)
    assert [each.message.partition(":")[0] for each in problems] == [str(path) for path in bad]


@pytest.mark.parametrize(
    ("line", "host", "rank"),
    [("my.job/0 [default3]:[rank11]: KeyError: 3", "my.job/0", 11), ("[trainer3]:KeyError: 3", None, 3)],
)
def test_names_that_launchers_put_before_a_line_are_no_part_of_it(tmp_path, line, host, rank):
    log = tmp_path / "a.log"
    log.write_text(f"{line}\nother\n")
    found = next(iter(log_lines([log])))
    assert (found.text, found.host, found.rank) == ("KeyError: 3", host, rank)


LINES = ("loading", "Traceback (most recent call last):", "    run()", "KeyError: 'tokens'", "end")


@pytest.mark.parametrize(
    ("wrap", "host"),
    [
        (lambda line: f"(TrainWorker pid=77, ip=10.0.0.7) {line}", "10.0.0.7"),
        (lambda line: f"(my-job, pid=77) {line}", None),
        (lambda line: f"\x1b[36m(Worker(actor-1) pid=77)\x1b[0m {line}", None),
        (lambda line: f"[pod/worker-2/pytorch] {line}", "worker-2"),
        (lambda line: f"node07: {line}", "node07"),
        (lambda line: f"2026/08/21 14:00:01 {line}", None),
        (lambda line: f"> {line}", None),
    ],
)
def test_what_a_collector_puts_around_a_line_is_taken_away(tmp_path, wrap, host):
    (tmp_path / "a.log").write_text("\n".join(map(wrap, LINES)) + "\n")
    read = list(log_lines([tmp_path / "a.log"]))
    assert [line.text for line in read] == [line.strip() for line in LINES]
    assert {line.host for line in read} == {host}
