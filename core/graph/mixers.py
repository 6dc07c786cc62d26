"""Recurrent sequence mixers that several hybrids have in exactly the same form; see :mod:`ggfw.graph.blocks`."""

from __future__ import annotations

from ggfw.errors import ModelFileError
from ggfw.graph.blocks import expect_rows
from ggfw.graph.builder import Graph
from ggfw.graph.hparams import Hparams
from ggfw.graph.tensor import Tensor
from ggfw.graph.weights import WeightRef, Weights

__all__ = ["divided", "expect_kernel", "expect_kind", "mamba2"]


def mamba2(g: Graph, h: Tensor, b: Weights, hp: Hparams, eps: float) -> Tensor:
    """Mamba-2 (Dao, Gu 2024, 2405.21060); (n_embd,) to (n_embd,).

    z, xBC, dt = Win h;  x, B, C = silu(conv(xBC));  y = scan(x, softplus(dt + bias), B, C)
    Wout norm(y * silu(z)), the norm by groups of columns where the file has its weight.

    Args:
        h: normalised input.
        eps: of the norm by groups.

    Raises:
        ModelFileError: a tensor does not have the shape that the ``ssm.*`` keys say.
    """
    d_inner, n_state = int(hp.get("ssm.inner_size")), int(hp.get("ssm.state_size"))
    n_head, n_group = int(hp.get("ssm.time_step_rank")), int(hp.get("ssm.group_count"))
    head_dim = divided(hp, "ssm.inner_size", "ssm.time_step_rank")
    n_bc = n_group * n_state
    expect_rows(
        b["ssm_in"],
        2 * d_inner + 2 * n_bc + n_head,
        f"{hp.architecture}.ssm.inner_size {d_inner}, state_size {n_state}, group_count {n_group} and "
        f"time_step_rank {n_head}",
    )
    z, xbc, dt = g.split(g.linear(h, b["ssm_in"]), d_inner, d_inner + 2 * n_bc, n_head)
    expect_kernel(b["ssm_conv1d"], hp, "ssm.conv_kernel")
    xbc = g.short_conv(xbc, b["ssm_conv1d"], b.get("ssm_conv1d.bias"), activation="silu")
    x, state_in, state_out = g.split(xbc, d_inner, n_bc, n_bc)
    y = g.ssm_scan(
        x.heads(n_head, head_dim),
        g.softplus(dt + b["ssm_dt.bias"]),
        state_in.heads(n_group, n_state),
        state_out.heads(n_group, n_state),
        a=b["ssm_a"],
        d=b["ssm_d"],
    )
    y = g.silu(z) * y.flat()
    if "ssm_norm" in b:
        grouped = y.heads(n_group, divided(hp, "ssm.inner_size", "ssm.group_count"))
        y = g.rms_norm(grouped, b["ssm_norm"], eps).flat()
    return g.linear(y, b["ssm_out"])


def divided(hp: Hparams, whole: str, parts: str) -> int:
    """Return the quotient of two keys.

    Raises:
        ModelFileError: it is no integer.
    """
    n, k = int(hp.get(whole)), int(hp.get(parts))
    if k < 1 or n % k:
        raise ModelFileError(
            f"{hp.architecture}.{whole} is {n}, which does not divide by {hp.architecture}.{parts} {k}"
        )
    return n // k


def expect_kind(b: Weights, layer: int, name: str, why: str) -> None:
    """Check that a layer has the tensor that belongs to its kind.

    Args:
        b: tensors of layer ``layer``.
        why: keys, values and the kind they make of the layer.

    Raises:
        ModelFileError: the tensor is missing.
    """
    if name not in b:
        raise ModelFileError(f"tensor blk.{layer}.{name}.weight is missing; {why}")


def expect_kernel(weight: WeightRef, hp: Hparams, key: str) -> None:
    """Check the kernel size of a convolution (n, K) against the metadata.

    Raises:
        ModelFileError: K is not the value of ``key``.
    """
    size = int(hp.get(key))
    if weight.shape[-1] != size:
        raise ModelFileError(
            f"tensor {weight.name} has a kernel of {weight.shape[-1]}; {hp.architecture}.{key} says {size}"
        )
