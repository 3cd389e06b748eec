"""``jaxpipe generate``: the text of a checkpoint's model, alike on any devices, and what is refused."""

import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxpipe.checkpoint.checkpoints import open_checkpoints
from jaxpipe.cli import main
from jaxpipe.cli.generate import _stream
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.models.llama_stage import init_llama, llama_constants, llama_contract
from jaxpipe.training.reference import reference_logits

MODEL = LlamaConfig(
    vocab_size=257,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
    initializer_range=0.3,
)

CONFIG = """
model: {vocab_size: 257, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 2, num_attention_heads: 4,
        num_key_value_heads: 2, max_position_embeddings: 32, initializer_range: 0.3}
data: {sequence_length: 16, path: /a/place/that/is/gone/*.txt}
mesh: {pp: 2}
pipeline: {num_microbatches: 4}
train: {num_steps: 5, global_batch_size: 8}
optimizer: {learning_rate: 0.01}
"""
"""As a checkpoint holds it, and of a text that is no longer there: it is not asked for."""

PROMPT = "def "
NUM_ASCII = 128


def make_params() -> dict:
    """Of which the most probable token is always one of ASCII, and never the end of the document."""
    params = init_llama(MODEL, 0)
    head = np.random.default_rng(1).normal(size=params["head"].shape).astype(np.float32)
    head[NUM_ASCII:] = head[65]  # as probable as another one: of equals the first is taken
    return params | {"head": jax.numpy.asarray(head)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A run with the checkpoint of step 7; the optimizer's moments lie beside the parameters."""
    directory = tmp_path_factory.mktemp("runs") / "first"
    params = make_params()
    arrays = {"params": params, "mu": jax.tree.map(jax.numpy.zeros_like, params)}
    with open_checkpoints(directory / "checkpoints", keep=3) as checkpoints:
        checkpoints.save(7, arrays, {"config": CONFIG})
    return directory


@pytest.fixture
def say(capsys):
    def run(*argv: object) -> tuple[int, str, str]:
        code = main(["generate", *map(str, argv)])
        return code, *capsys.readouterr()

    return run


def greedy_text(prompt: str, num_tokens: int) -> str:
    """The most probable token after the whole text, again and again, without a cache."""
    contract, params = llama_contract(MODEL, "einsum"), make_params()
    constants = llama_constants(MODEL, MODEL.max_position_embeddings)
    run = jax.jit(lambda tokens: reference_logits(contract, params, tokens, constants, {}))
    ids = list(prompt.encode())
    for _ in range(num_tokens):
        tokens = np.array([ids + [0] * (MODEL.max_position_embeddings - len(ids))], np.int32)
        ids.append(int(run(tokens)[0, len(ids) - 1].argmax()))
    return bytes(ids).decode()


def test_greedy_text_is_that_of_the_whole_text_read_again_for_each_token(saved: Path, say) -> None:
    code, out, err = say(saved, "--prompt", PROMPT, "--temperature", 0)
    assert (code, err) == (0, "")
    # without --num-tokens as many as there is room for, if that is less than 128
    assert out == greedy_text(PROMPT, 32 - len(PROMPT)) + "\n"
    assert len(set(out)) > 4
    checkpoint = saved / "checkpoints" / "7"
    assert say(checkpoint, "--prompt", PROMPT, "--temperature", 0, "--num-tokens", 1)[1] == out[:5] + "\n"


def test_the_same_seed_gives_the_same_text_on_any_devices_and_in_any_form(
    saved: Path, say, tmp_path: Path, monkeypatch
) -> None:
    drawn = "--num-tokens", 20, "--temperature", 1.2, "--seed", 3
    text = say(saved, "--prompt", PROMPT, *drawn)[1]
    assert len(text) > len(PROMPT) + 10
    assert say(saved, "--prompt", PROMPT, *drawn[:-1], 4)[1] != text
    monkeypatch.setattr("sys.stdin", io.StringIO(PROMPT))
    assert say(saved, "--prompt", "-", *drawn, "--pp", 2, "--tp", 2)[1] == text
    file = tmp_path / "text"
    assert say(saved, "--prompt", PROMPT, *drawn, "--num-samples", 2, "-o", file) == (0, "", "")
    first, second = file.read_text().split("--- 2 of 2\n")
    assert first == f"--- 1 of 2\n{text}"
    assert second.startswith(PROMPT)
    assert second != text
    record = json.loads(say(saved, "--prompt", PROMPT, *drawn, "--format", "json")[1])
    assert (record["step"], record["prompt"], record["seed"]) == (7, PROMPT, 3)
    (sample,) = record["samples"]
    assert PROMPT + sample["text"] + "\n" == text
    assert sample["num_tokens"] == 20


def test_half_a_character_waits_for_its_other_half(capsys) -> None:
    _stream("> ", iter(["a\ufffd", "a\ufffd\ufffd", "aé", "aéb\ufffd"]))
    assert capsys.readouterr().out == "> aéb\ufffd\n"


@pytest.mark.parametrize("prompt", ["-", "\udcff"], ids=["standard input", "argument"])
def test_a_prompt_that_is_no_utf_8_is_refused(saved: Path, say, monkeypatch, prompt: str) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff"), encoding="utf-8"))
    code, out, err = say(saved, "--prompt", prompt)
    assert (code, out) == (2, "")
    assert "--prompt must be text in UTF-8" in err


def test_without_a_prompt_a_document_begins(saved: Path, say) -> None:
    code, out, _ = say(saved, "--num-tokens", 31, "--temperature", 0)
    assert code == 0
    assert len(out.encode()) == 32


def test_all_faults_of_a_request_are_told_at_once(tmp_path: Path, say) -> None:
    code, out, err = say(
        tmp_path / "none",
        "--num-tokens",
        0,
        "--temperature",
        "nan",
        "--top-p",
        1.5,
        "--seed",
        "x",
        "--pp",
        -1,
    )
    assert (code, out) == (2, "")
    for fault in (
        "there is no ",
        "--num-tokens 0 must be at least 1",
        "--temperature nan must be at least 0",
        "--top-p 1.5 must be above 0 and at most 1",
        "--seed 'x' must be a whole number",
        "--pp -1 must be at least 1",
    ):
        assert f"jaxpipe generate: {fault}" in err


def test_what_the_model_has_no_room_for_is_refused_with_the_numbers(saved: Path, say) -> None:
    code, _, err = say(saved, "--prompt", PROMPT, "--num-tokens", 29, "--pp", 3, "--tp", 3)
    assert code == 2
    assert "prompt of 4 tokens and --num-tokens 29 must fit into the 32 positions" in err
    assert "use at most --num-tokens 28" in err
    assert "--pp 3 must be at most 2, the number of layers" in err
    assert "--tp 3 must divide the model's 2 kv heads" in err
    assert "shorten it to 31 or fewer" in say(saved, "--prompt", "x" * 32)[2]


def test_more_devices_than_there_are_are_refused(saved: Path, say, monkeypatch) -> None:
    monkeypatch.setattr("jaxpipe.training.generation.loading.find_devices", lambda: jax.devices()[:3])
    code, out, err = say(saved, "--pp", 2, "--tp", 2)
    assert (code, out) == (2, "")
    assert "--pp 2 x --tp 2 needs 4 devices, but there are 3 (cpu); use fewer" in err


def test_a_checkpoint_that_is_not_of_a_run_is_refused(tmp_path: Path, say) -> None:
    with open_checkpoints(tmp_path / "checkpoints", keep=1) as checkpoints:
        checkpoints.save(1, {"params": {"embedding": jax.numpy.ones(3)}}, {"data": 1})
    code, _, err = say(tmp_path)
    assert code == 2
    assert "must be of a run, but holds no configuration" in err


def test_faults_are_told_before_jax_is_loaded(saved: Path) -> None:
    program = f"""
import sys
from jaxpipe.cli import main
assert main(["generate", {str(saved)!r}, "--num-tokens", "99"]) == 2
sys.exit(f"loaded {{sys.modules['jax']}}" if "jax" in sys.modules else 0)
"""
    assert subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_a_line_and_no_traceback_at_any_moment(saved, number) -> None:
    """While modules load, while XLA compiles, and while it draws."""
    command = [sys.executable, "-m", "jaxpipe", "generate", str(saved), "--prompt", "a"]
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    whole = time.perf_counter() - began
    for share in (0.02, 0.3, 0.6, 0.8, 0.9):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        time.sleep(share * whole)
        process.send_signal(number)
        said = process.communicate(timeout=60)[1].decode()
        allowed = {128 + number} | ({-signal.SIGTERM} if number == signal.SIGTERM and share < 0.1 else set())
        assert process.returncode in allowed | ({0} if share > 0.5 else set()), (share, said)
        assert "Traceback" not in said
        assert len(said.split("\n")) <= 3
