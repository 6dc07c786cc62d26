"""top_a: keep candidates with p >= a * p_max^2."""

from ggfw.descriptors import SamplerStage
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

NAME, ORDER = "top_a", 750  # between top_p (700) and min_p (800)


class TopA:
    """The stage; see the module. Candidates come best first, so what stays is a head of them."""

    name, order, limit = NAME, ORDER, None

    def __init__(self, a):
        self._a = a

    def apply(self, candidates, context):
        from ggfw.sampling import softmax

        p = softmax(candidates.logits)  # (n,)
        return candidates.head(max(1, int((p >= self._a * p[0] * p[0]).sum())))


def make(params):
    """The stage of one request, or None where top_a is 0.

    Raises:
        InvalidRequest: top_a is no number from 0 to 1.
    """
    from ggfw.errors import InvalidRequest

    a = params.extra[NAME]
    if isinstance(a, bool) or not isinstance(a, int | float) or not 0 <= a <= 1:
        raise InvalidRequest(f"{NAME} is {a!r}; a number from 0 to 1 is expected", NAME)
    return TopA(a) if a else None


@hookimpl
def ggfw_register_sampler_stages():
    return [
        SamplerStage(
            name=NAME, order=ORDER, load=make, params={NAME: 0.0}, summary="keep p >= top_a * p_max^2"
        )
    ]
