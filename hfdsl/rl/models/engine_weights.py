"""The weights of a policy as its engine takes them, listed once, so that a call needs no pass over the modules."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from hfdsl.rl.engines.handle import Versioned
from hfdsl.rl.models.adapters import adapters, base_names
from hfdsl.rl.models.forward import Policy, version_of
from hfdsl.rl.models.sharding import full_adapter, full_weights, is_sharded
from hfdsl.rl.models.tensor_parallel import slice_dims


class EngineWeights:
    """All weights of a policy, merged; or with ``apart`` the base weights, and the adapter beside them.

    It is built from a policy that already has its shards and adapters, and whose parameters remain the same objects.
    """

    def __init__(self, policy: Policy, *, apart: bool) -> None:
        self.policy, self.apart = policy, apart
        self._parameters = tuple(policy.parameters())
        self._frozen = tuple(parameter for parameter in self._parameters if not parameter.requires_grad)
        self._whole = _whole_parameters(policy, merged=not apart)

    def versions(self) -> tuple[Versioned, Versioned | None]:
        """The weights and the adapter, as they are now."""
        version = version_of(self._parameters) + self.policy.writes
        if not self.apart:
            return self._versioned(version), None
        base = self._versioned(version_of(self._frozen))
        return base, Versioned(version, lambda: full_adapter(self.policy))

    def _versioned(self, version: int) -> Versioned:
        return Versioned(version, self._weights, None if self._whole is None else self._place)

    def _place(self) -> list[tuple[object, ...]]:
        """The addresses of the parameters, and which elements of their memory they use."""
        whole = (self._whole or {}).values()
        return [(each.data_ptr(), each.dtype, each.shape, each.stride()) for each in whole]

    def _weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        if self._whole is None:
            return full_weights(self.policy, merged=not self.apart)
        return ((name, parameter.detach()) for name, parameter in self._whole.items())


def _whole_parameters(policy: Policy, *, merged: bool) -> dict[str, torch.nn.Parameter] | None:
    """The parameters that ``full_weights`` copies; None if it gathers shards or slices, merges or converts them."""
    is_cut = is_sharded(policy) or bool(slice_dims(policy))
    if is_cut or policy.export_dtype is not None or (merged and adapters(policy)):
        return None
    parameters, names = dict(policy.named_parameters(remove_duplicate=False)), base_names(policy)
    whole = {base_name: parameters[name] for name, base_name in names.items() if name in parameters}
    return whole if len(whole) == len(names) else None
