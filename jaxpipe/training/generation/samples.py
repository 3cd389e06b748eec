"""A continuation of ``train.sample_prompt`` after each evaluation, with the parameters as they lie.

It follows from the parameters, ``run.seed`` and the step alone, so a resumed run writes what the run would
have written. Nothing of it is on the devices while the run trains, but the prompt.
"""

import textwrap
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from jaxpipe.config import Config
from jaxpipe.data import Tokenizer
from jaxpipe.models.llama_stage import llama_constants
from jaxpipe.pipeline import Program, Tree
from jaxpipe.pipeline.decode import Decoder
from jaxpipe.pipeline.sampling import Sampling
from jaxpipe.training.generation.programs import Generation, compile_generation, generate
from jaxpipe.training.generation.text_tokens import (
    TextTokens,
    continuation,
    printable,
    prompt_ids,
    text_tokens,
)
from jaxpipe.training.stopping.interrupt import Stop


class Sampler(NamedTuple):
    """What takes a sample: the compiled programs, and the text that they continue."""

    generation: Generation
    prompt: str
    tokens: TextTokens
    seed: int


def compile_sampler(
    config: Config, tokenizer: Tokenizer, program: Program, *, params: Tree
) -> Sampler | None:
    """Compiled for parameters like ``params``; None where no samples are wanted."""
    train = config.train
    if train.sample_prompt is None:
        return None
    tokens = text_tokens(tokenizer)
    generation = compile_generation(
        Decoder(program.contract, program.layout, program.mesh, program.settings.compute_dtype),
        params,
        make_constants=lambda length: llama_constants(config.model, length),
        prompt=prompt_ids(tokens, train.sample_prompt),
        num_samples=1,
        num_tokens=train.sample_tokens,
        sampling=Sampling(train.sample_temperature, train.sample_top_p, tokens.num_ids),
        end=tokens.end_of_document,
    )
    return Sampler(generation, train.sample_prompt, tokens, config.run.seed)


def take_sample(
    sampler: Sampler,
    params: Tree,
    stop: Stop,
    *,
    step: int,
    on_tokens: Callable[[int], None] = lambda _: None,
) -> str | None:
    """How the prompt goes on after this step; None if ``stop`` came first.

    ``on_tokens`` is called with the number of tokens that there are, before more are drawn.
    """
    seed = int(np.random.SeedSequence((sampler.seed, step)).generate_state(1)[0])
    new: list[int] = []
    on_tokens(0)
    for found in generate(sampler.generation, params, seed=seed):
        new = found[0].tolist()
        stop.ask()
        if stop:
            return None
        on_tokens(len(new))
    return continuation(sampler.tokens, prompt_ids(sampler.tokens, sampler.prompt), new)


def shown_sample(prompt: str, text: str) -> str:
    """For the console: further in than the messages between which it stands."""
    return textwrap.indent(printable(prompt + text), "    ", lambda _: True)
