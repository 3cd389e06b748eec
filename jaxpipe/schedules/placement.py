"""Which rank holds which stage, and as which of its chunks.

A placement is a table, so V-shaped and mirrored ones are only other tables. Stages that follow
each other always lie on one rank or on neighbours of the ring: a message travels one hop.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """``stage_ranks[pipe][stage]`` is the rank of a stage, ``stage_chunks[pipe][stage]`` its chunk there."""

    num_ranks: int
    stage_ranks: tuple[tuple[int, ...], ...]
    stage_chunks: tuple[tuple[int, ...], ...]

    @property
    def num_pipes(self) -> int:
        return len(self.stage_ranks)

    @property
    def num_stages(self) -> int:
        return len(self.stage_ranks[0])

    @property
    def num_chunks(self) -> int:
        """Stages per rank and pipe."""
        return self.num_stages // self.num_ranks

    def rank(self, stage: int, pipe: int = 0) -> int:
        return self.stage_ranks[pipe][stage]

    def chunk(self, stage: int, pipe: int = 0) -> int:
        return self.stage_chunks[pipe][stage]

    def stage(self, rank: int, chunk: int, pipe: int = 0) -> int:
        """The stage that ``rank`` holds as ``chunk``."""
        for stage, place in enumerate(zip(self.stage_ranks[pipe], self.stage_chunks[pipe], strict=True)):
            if place == (rank, chunk):
                return stage
        raise ValueError(f"rank {rank} holds no chunk {chunk} of pipe {pipe}")


def looped(num_ranks: int, num_chunks: int = 1) -> Placement:
    """Stage s lies on rank ``s % num_ranks`` (Narayanan et al. 2021, section 2.2)."""
    stages = range(num_ranks * num_chunks)
    return Placement(
        num_ranks,
        (tuple(stage % num_ranks for stage in stages),),
        (tuple(stage // num_ranks for stage in stages),),
    )


def v_shaped(num_ranks: int) -> Placement:
    """Stages go up the ranks and come back, so that both ends lie on rank 0 (Qi et al. 2024, section 6)."""
    ranks = (*range(num_ranks), *reversed(range(num_ranks)))
    return Placement(num_ranks, (ranks,), ((0,) * num_ranks + (1,) * num_ranks,))


def mirrored(num_ranks: int, num_pipes: int = 2) -> Placement:
    """Pipes in both directions: even ones go up the ranks, odd ones down (Li and Hoefler 2021, section 3.1).

    With more than two, each further pair begins ``2 num_ranks / num_pipes`` ranks farther round the ring.
    """
    stage_ranks = []
    for pipe in range(num_pipes):
        first = pipe // 2 * (2 * num_ranks // num_pipes)
        up = tuple((first + stage) % num_ranks for stage in range(num_ranks))
        stage_ranks.append(up[::-1] if pipe % 2 else up)
    return Placement(num_ranks, tuple(stage_ranks), ((0,) * num_ranks,) * num_pipes)


def balanced_layers(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Layers of each stage, as even as can be, the longer stages first: 10 over 4 gives 3, 3, 2, 2."""
    if num_layers < num_stages:
        raise ValueError(
            f"{num_layers} layers cannot fill {num_stages} stages; use at least {num_stages} layers, "
            "or fewer ranks or chunks"
        )
    quotient, remainder = divmod(num_layers, num_stages)
    return tuple(quotient + (stage < remainder) for stage in range(num_stages))
