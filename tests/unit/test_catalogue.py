"""The catalogue of faults: every public report is in it, each with a ladder on which something must stay right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from dist_checks.axes import Axis
from dist_checks.judging.triage import SYMPTOMS
from dist_checks.matrix import parse
from dist_checks.selftest import catalogue, run, secrecy, sentence
from dist_checks.selftest.catalogue import Planted

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, when its own parts are imported

KNOWN = {
    "O01": "pytorch/pytorch#31771",
    "O02": "NVlabs/LongLive#71",
    "O03": "huggingface/accelerate PR#4071",
    "O04": "huggingface/accelerate#3547",
    "O05": "Lightning-AI/pytorch-lightning#13605",
    "O06": "NVIDIA-NeMo/Speech#8333",
    "O07": "Lightning-AI/pytorch-lightning#4732",
    "O08": "pytorch/pytorch#33148",
    "O09": "huggingface/transformers#34242",
    "O10": "huggingface/transformers#37474",
    "O11": "karpathy/build-nanogpt PR#30",
    "O12": "modelscope/FunASR PR#3472",
    "O13": "pytorch/pytorch#69031",
    "O14": "pytorch/torchtitan#1733",
    "O15": "pytorch/pytorch#12603",
    "O16": "pytorch/pytorch#111138",
    "O17": "pytorch/torchtitan#166",
    "O18": "verl-project/verl#7493",
    "O19": "huggingface/accelerate#3256",
    "O20": "RLinf/RLinf PR#1558",
    "O21": "deepspeedai/DeepSpeed PR#7965",
    "O22": "NVIDIA/Megatron-LM#1446",
    "O23": "NVIDIA-NeMo/Automodel#1291",
    "O24": "deepspeedai/DeepSpeed#99",
    "O25": "uw-syfi/piper#13",
    "O26": "NVIDIA/Megatron-LM#906",
    "O27": "deepspeedai/DeepSpeed#5618",
    "O28": "NVIDIA/Megatron-LM PR#5047",
    "O29": "allenai/OLMo-core PR#828",
    "O30": "Lightning-AI/pytorch-lightning#9599",
    "O31": "workofart/ml-by-hand PR#85",
    "O32": "pytorch/torchtitan PR#816",
    "O33": "alan-turing-institute/autocast PR#386",
    "O34": "k2-fsa/icefall#1616",
}
"""The reports, by the number under which the catalogue has them."""

MEASURED = (
    "pp_tp_ddp",
    "nn_all_gather",
    "strided_all_reduce",
    "strided_scatter",
    "shapes_differ",
    "loss_scale_grows",
)
"""Wrong numbers that torch 2.13, gloo and DeepSpeed 0.19 compute without an error."""

NOT_PLANTED: dict[str, str] = {}
"""Symptoms in the table of triage that no fault of the catalogue leads to, each with the reason."""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> list[Planted]:
    """As the self-test reads them."""
    from dist_checks.worker import entry

    folder = tmp_path_factory.mktemp("catalogue")
    entry.catalogue({"folder": str(folder)})
    return [Planted.from_json(each) for each in json.loads((folder / catalogue.FILE).read_text())]


def report_of(id: str) -> str | None:
    """O23 of O23a and of O23-2; None of what has a name of its own."""
    return id[:3] if id[:3] in KNOWN else None


def test_every_report_has_a_fault_that_names_it(planted: list[Planted]) -> None:
    found = {report_of(fault.id) for fault in planted} - {None}
    assert found >= set(KNOWN)
    for fault in planted:
        if report := report_of(fault.id):
            assert KNOWN[report] in fault.source, fault.id


def test_every_symptom_is_one_that_a_planted_fault_leads_to(planted: list[Planted]) -> None:
    from dist_checks.worker.faults import FAULTS, MODELS

    reached = {symptom for fault in (*FAULTS, *MODELS) for symptom in fault.leads_to}
    assert reached | set(NOT_PLANTED) == set(SYMPTOMS)
    assert not reached & set(NOT_PLANTED), "these are planted after all"
    for fault in planted:
        for symptom, suspect in fault.leads_to.items():
            assert suspect in SYMPTOMS[symptom].suspects, fault.id


def test_what_torch_and_deepspeed_compute_wrongly_is_planted_too(planted: list[Planted]) -> None:
    assert {fault.id for fault in planted} >= set(MEASURED)


def test_ten_reports_are_planted_in_two_ways(planted: list[Planted]) -> None:
    from dist_checks.worker.faults import FAULTS, again

    by_id = {fault.id: fault for fault in planted}
    assert len(again.FAULTS) >= 10
    for fault in again.FAULTS:
        first, second = by_id[fault.id.removesuffix("-2")], by_id[fault.id]
        assert fault.id.endswith("-2")
        assert (first.source, first.check, first.blamed) == (second.source, second.check, second.blamed)
        (other,) = (f for f in FAULTS if f.id == first.id)
        assert other.plant.__module__ != fault.plant.__module__


def test_each_fault_has_a_ladder_on_which_something_must_stay_right(planted: list[Planted]) -> None:
    for fault in planted:
        matrix = parse(fault.matrix())
        assert fault.expected_blame, fault.id
        if fault.blamed == "axis":
            assert fault.expected_sets, fault.id
            alone = {axis for each in fault.expected_sets if len(each) == 1 for axis in each}
            # Of one axis with several values some may stay right; where curves are long, its singles must do.
            choices = any(len(values) > 1 for values in matrix.axes.values()) or fault.check == "curve"
            assert choices or {axis.value for axis in matrix.axes} - alone, (
                f"{fault.id}: what stays right on its ladder?"
            )


def test_faults_of_deepspeed_say_that_they_need_it(planted: list[Planted]) -> None:
    for fault in planted:
        stages = set(parse(fault.matrix()).axes.get(Axis.ZERO, ())) - {"redundancy"}
        assert ("deepspeed" in fault.needs) == bool(stages), fault.id


def test_without_a_part_its_faults_are_skipped_and_the_last_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dist_checks.worker import entry

    monkeypatch.setattr(entry, "find_spec", lambda name: None)
    monkeypatch.setattr(entry.compile, "missing", lambda: "needs a C++ compiler, and there is no g++ on the path")
    entry.catalogue({"folder": str(tmp_path)})
    rows = [Planted.from_json(each) for each in json.loads((tmp_path / catalogue.FILE).read_text())]
    lacking = {row.id: row for row in rows if row.missing}
    assert set(lacking) == {row.id for row in rows if row.needs} | {"compile_off"}
    monkeypatch.setattr(catalogue, "read", lambda launcher, folder: [*lacking.values()])
    noted: list[str] = []
    test = run(tmp_path / "run", faults="loss_scale_grows,compile_off", note=noted.append)
    assert [row.skipped for row in test.rows] == [
        "deepspeed is not installed",
        "compile needs a C++ compiler, and there is no g++ on the path",
    ]
    assert all("SKIP" in line for line in noted)
    assert sentence(test) == (
        "FAIL 0 of 0 faults caught and blamed rightly, 0 healthy rungs with no false alarms; SKIP loss_scale_grows "
        "(deepspeed is not installed), compile_off (compile needs a C++ compiler, and there is no g++ on the path)"
    ), "nothing tried is never a pass"
    assert [row["skipped"] is None for row in test.to_json()["faults"]] == [False, False]


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes(each)


def test_no_traceback_says_that_code_is_from_among_the_faults() -> None:
    import sys

    from dist_checks.worker.faults import FAULTS
    from dist_checks.worker.faults.disguise import disguise

    for fault in FAULTS:
        disguise(fault.plant)
        module = sys.modules[fault.plant.__module__]
        own = [f for f in vars(module).values() if isinstance(f, FunctionType) and f.__module__ == module.__name__]
        assert own
        for function in own:
            for code in codes(function.__code__):
                assert "/" not in code.co_filename, (fault.id, code.co_filename)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"rung": "tp2", "default": 1}', False),
        ('{"site": "sleep_first (rank_sleeps.py:31)"}', False),  # so it would be in a file of the user's
        ('{"fault": "O22"}', True),
        ('{"title": "A NORM NOT SUMMED"}', True),
        ('File "dist_checks/worker/faults/tp.py", line 3', True),
        ("rank_sleeps", True),
    ],
)
def test_a_trace_that_speaks_of_faults_is_noticed(tmp_path: Path, text: str, says: bool) -> None:
    for id in ("rank_sleeps", "O22"):
        folder = tmp_path / "fault" / id / "rungs" / "tp2"
        folder.mkdir(parents=True)
        (folder / "rank-00000.jsonl").write_text(text)
        (folder / "job.json").write_text(json.dumps({"folder": str(folder)}))
    found = [secrecy.told(tmp_path / "fault" / id, id, "a norm not summed") for id in ("rank_sleeps", "O22")]
    assert any(found) == says
    assert found[0] in ([], ["rungs/tp2/rank-00000.jsonl"])


def test_what_is_written_is_what_scripts_read(planted: list[Planted]) -> None:
    from dist_checks.selftest.run import Row, SelfTest

    row = Row(fault=planted[0], caught=True, check=planted[0].check, blamed=["dp_replicate"], step=4)
    test: dict[str, Any] = SelfTest(rows=(row,), clean_runs=2, false_alarms=(), seconds=1.0).to_json()
    assert {"faults", "clean_runs", "false_alarms", "mutants"} <= set(test)
    wanted = {"id", "planted_in", "expected_check", "expected_blame", "caught", "check", "blamed", "step"}
    assert wanted <= set(test["faults"][0])
    assert test["faults"][0]["expected_blame"] == ["dp_replicate", "dp_shard"]
