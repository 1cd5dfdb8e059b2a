"""Three numberings of the same 12 ranks: what is joined comes in the order of dp, whatever the ranks are called."""

import hfdsl as hf
from hfdsl import Dispatch, i64, register
from tests.corpus.vocabulary import B, P, Prompts, prompts_of


class Places(hf.Batch):
    first: i64[B]


class Reader(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def read(self, prompts: Prompts) -> Places:
        return Places(first=prompts.ids.tensor[:, 0])


@hf.dataflow
def program(prompts: Prompts, a: Reader, b: Reader, c: Reader) -> list[Places]:
    return [a.read(prompts), b.read(prompts), c.read(prompts)]


pool = hf.ResourcePool([6, 6])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        a=hf.place(Reader, pool=pool, mesh=hf.Mesh(pp=2, dp=3, tp=2)),
        b=hf.place(Reader, pool=pool, mesh=hf.Mesh(pp=2, dp=3, tp=2, order=("tp", "dp", "pp"))),
        c=hf.place(Reader, pool=pool, mesh=hf.Mesh(pp=2, dp=3, tp=2, order=("dp", "pp", "tp"))),
    ),
    dims={B: 6, P: 3},
    batches=prompts_of(6),
)
