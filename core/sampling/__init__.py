"""Sampling: from a row of logits to a token, without a model.

>>> from ggfw.sampling import Params, Sampler
>>> Sampler(Params(temperature=0)).pick([1.0, 3.0, 3.0])
1
"""

from ggfw.sampling.arithmetic import greedy, softmax
from ggfw.sampling.build import SamplerVocab
from ggfw.sampling.chain import Sampler
from ggfw.sampling.constraint import Constraint
from ggfw.sampling.dry import Breakers
from ggfw.sampling.logprobs import TokenLogprob, TopLogprob, token_logprob
from ggfw.sampling.order import DEFAULT_SAMPLERS, SAMPLERS
from ggfw.sampling.params import Params, defaults
from ggfw.sampling.rng import Pcg
from ggfw.sampling.setup import SamplerFactory, SamplerSetup, host_reason
from ggfw.sampling.stages import Candidates, Stage, StageContext
from ggfw.sampling.stop import StopStrings

__all__ = [
    "Breakers",
    "Candidates",
    "Constraint",
    "DEFAULT_SAMPLERS",
    "Params",
    "Pcg",
    "SAMPLERS",
    "Sampler",
    "SamplerFactory",
    "SamplerSetup",
    "SamplerVocab",
    "Stage",
    "StageContext",
    "StopStrings",
    "TokenLogprob",
    "TopLogprob",
    "defaults",
    "greedy",
    "host_reason",
    "softmax",
    "token_logprob",
]
