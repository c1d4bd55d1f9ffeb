"""Llama 4's experts, which its class multiplies with every token, all but a few of them scaled to zero.

A router's sigmoid scales what goes into an expert, and is zero for the experts that were not chosen, so that a token
may as well go to those alone that were. Where the experts are computed here (`model.experts.forward`), it does; else as
transformers does it. Either way the choice enters the experts as it does in all other mixtures.
"""

from __future__ import annotations

from functools import cache
from typing import Any

MIXTURE = "Llama4TextMoe"


def put_into(model: Any) -> int:
    """Have every mixture of Llama 4 in a model hand its router's choice to its experts; returns how many there are."""
    mixtures = [module for module in model.modules() if type(module).__name__ == MIXTURE]
    for mixture in mixtures:
        mixture_class, experts_class = classes()
        mixture.__class__ = mixture_class
        mixture.experts.__class__ = experts_class
        mixture.experts.config = mixture.shared_expert.config
    return len(mixtures)


@cache
def classes() -> tuple[type[Any], type[Any]]:
    """What a mixture and its experts become: transformers' own classes with another forward, and the same weights."""
    import torch
    from transformers.models.llama4 import modeling_llama4

    from loradock.model.experts import forward

    class Mixture(modeling_llama4.Llama4TextMoe):
        """Its experts are told of each token which are meant, and with what weight."""

        def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            """[..., hidden] to the sum of experts [tokens, hidden], and the router's logits [tokens, experts]."""
            tokens = hidden_states.reshape(-1, self.hidden_dim)
            scores, logits = self.router(tokens)
            chosen = logits.topk(self.top_k, dim=1).indices
            routed = self.experts(tokens, chosen, scores.gather(1, chosen))
            return self.shared_expert(tokens) + routed, logits

    class Experts(modeling_llama4.Llama4TextExperts):
        """The matrices of all experts, with transformers' interface for what computes them."""

        has_post_expert_norm = False

        def _apply_gate(self, gate_up: torch.Tensor) -> torch.Tensor:
            gate, up = gate_up.chunk(2, dim=-1)
            return up * self.act_fn(gate)

        def forward(
            self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
        ) -> torch.Tensor:
            """The sum over each token's experts [tokens, hidden]."""
            if forward.is_installed(self):
                return forward.experts_forward(self, hidden_states, top_k_index, top_k_weights)  # pyright: ignore[reportCallIssue]  as torch types it
            scores = top_k_weights.new_zeros(len(top_k_weights), self.num_experts)
            scores = scores.scatter(1, top_k_index, top_k_weights)
            scaled = hidden_states.repeat(self.num_experts, 1) * scores.t().reshape(-1, 1)
            outputs = super().forward(scaled)
            return outputs.view(self.num_experts, -1, self.hidden_size).sum(dim=0)

    return Mixture, Experts
