"""Samples after evaluations: each once, whatever interrupts the run, and nothing else changes."""

import dataclasses
import json
import signal
from pathlib import Path

import numpy as np
import pytest
from run_design import final_hash, metrics_of, resumed, run

from jaxpipe.config import Config
from jaxpipe.data import load_tokenizer
from jaxpipe.errors import InputError
from jaxpipe.training.generation import samples as samples_module
from jaxpipe.training.generation.samples import Sampler, take_sample
from jaxpipe.training.generation.text_tokens import continuation, printable, prompt_ids, text_tokens
from jaxpipe.training.stopping.interrupt import StopRequest
from jaxpipe.training.trainer import train

PROMPT = "1f "
WANTED = {
    "train__eval_every": 2,
    "train__eval_batches": 1,
    "train__sample_prompt": PROMPT,
    "train__sample_tokens": 20,
}


def samples_of(config: Config) -> list[dict]:
    assert config.run.dir is not None
    return [json.loads(line) for line in Path(config.run.dir, "samples.jsonl").read_text().splitlines()]


def test_samples_follow_evaluations_leave_training_as_it_is_and_are_the_same_after_a_resume(
    make_config, capsys
) -> None:
    without = make_config("without", train__eval_every=2, train__eval_batches=1, checkpoint__every=3)
    config = make_config("with", checkpoint__every=3, **WANTED)
    assert run(config) == run(without)
    found = samples_of(config)
    assert [(line["step"], line["prompt"]) for line in found] == [(step, PROMPT) for step in (0, 2, 4, 5)]
    assert len({line["text"] for line in found}) == 4
    shown = capsys.readouterr().out
    assert f"step 4: sample\n    {PROMPT}{printable(found[2]['text'])[:1]}" in shown
    assert "\x1b" not in shown

    again = make_config("again", checkpoint__every=3, **WANTED)
    assert train(_until(again, 3)) == 0
    assert [line["step"] for line in samples_of(again)] == [0, 2, 3]
    # as a run killed after step 4 would leave it: resumed from step 3, which is no evaluation of this run
    with Path(again.run.dir, "samples.jsonl").open("a") as file:
        file.write('{"step": 4, "prompt": "1f ", "text": "of the killed run"}\n{"step": 5, "pro')
    run(resumed(again))
    assert final_hash(again) == final_hash(config)
    assert [line for line in samples_of(again) if line["step"] != 3] == found


def test_the_sample_of_the_first_weights_is_the_same_on_another_mesh(make_config) -> None:
    mesh = {"mesh__dp": 2, "mesh__pp": 2, "mesh__tp": 2, "mesh__zero": 3, "mesh__sequence_parallel": True}
    one, other = make_config("one", **WANTED), make_config("other", train__num_steps=1, **WANTED, **mesh)
    run(one)
    run(other)
    assert samples_of(other)[0] == samples_of(one)[0]


def test_a_signal_while_a_sample_is_taken_leaves_the_evaluation_to_the_resumed_run(
    make_config, monkeypatch
) -> None:
    config, whole = make_config("stopped", **WANTED), make_config("whole", **WANTED)
    run(whole)
    generate = samples_module.generate

    seeds = []

    def interrupted(*arguments, seed):
        seeds.append(seed)
        for found in generate(*arguments, seed=seed):
            if len(seeds) == 3:  # the sample after step 4
                signal.raise_signal(signal.SIGINT)
            yield found

    monkeypatch.setattr(samples_module, "generate", interrupted)
    assert train(config) == 0
    assert [line["step"] for line in samples_of(config)] == [0, 2]
    assert [line["step"] for line in metrics_of(config) if "eval_loss" in line] == [0, 2]
    run(resumed(config))
    assert samples_of(config) == samples_of(whole)
    evaluations = [line for line in metrics_of(config) if "eval_loss" in line]
    assert evaluations == [line for line in metrics_of(whole) if "eval_loss" in line]


def test_a_sample_ends_with_the_document_and_depends_on_seed_and_step(make_config, monkeypatch) -> None:
    tokens = text_tokens(load_tokenizer(None))
    seeds = []

    def generate(generation, params, *, seed):
        seeds.append(seed)
        yield np.array([[97, 98]])
        yield np.array([[97, 98, tokens.end_of_document, 99]])

    monkeypatch.setattr(samples_module, "generate", generate)
    for seed, step in ((0, 1), (0, 2), (1, 1), (0, 1)):
        sampler = Sampler(None, "x", tokens, seed)
        told = []
        assert take_sample(sampler, {}, StopRequest(), step=step, on_tokens=told.append) == "ab"
        assert told == [0, 2, 4]
    assert seeds[0] == seeds[3]
    assert len(set(seeds)) == 3
    assert take_sample(sampler, {}, StopRequest(received=signal.SIGTERM), step=1) is None


def test_a_prompt_that_is_too_long_is_refused_before_anything_is_written(make_config) -> None:
    """With the configuration, so before JAX is loaded, and by ``--dry-run`` too."""
    with pytest.raises(InputError, match=r"of 13 tokens and train.sample_tokens=20 must fit .*embeddings=32"):
        make_config("long", **(WANTED | {"train__sample_prompt": "a" * 13}))
    assert make_config("fits", **(WANTED | {"train__sample_prompt": "a" * 12}))


def test_a_prompt_without_tokens_begins_a_document() -> None:
    tokens = text_tokens(load_tokenizer(None))
    assert prompt_ids(tokens, "") == [tokens.end_of_document]
    assert continuation(tokens, prompt_ids(tokens, ""), [97, 98]) == "ab"


def test_a_continuation_is_decoded_with_what_stands_before_it() -> None:
    tokens = text_tokens(load_tokenizer(None))
    assert continuation(tokens, tokens.encode("caf"), list("é!".encode())) == "é!"
    assert continuation(tokens, [tokens.end_of_document], [97, 256, 98]) == "a"
    assert continuation(tokens, [99], [0xC3]) == "\ufffd"
    assert printable("a\x1b[2J\n\tb") == "a\ufffd[2J\n\tb"


def _until(config: Config, num_steps: int) -> Config:
    return dataclasses.replace(config, train=dataclasses.replace(config.train, num_steps=num_steps))
