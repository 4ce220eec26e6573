"""Our additions to vLLM's CPU workers: they receive all weights at once, and draw seeded tokens without waste.

vLLM imports this module in each worker before it makes the model runner and its sampler.
"""

from collections.abc import Mapping

import torch
import vllm.v1.sample.ops.topk_topp_sampler as sampler_module
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

from openrlhf_rpo.platform.weight_sync import from_rank_0, gloo_group


class CpuWorkerExtension:
    """Mixed into vLLM's CPU worker (``worker_extension_cls``)."""

    def init_process_group(
        self,
        master_address: str,
        master_port: int,
        rank_offset: int,
        world_size: int,
        group_name: str,
        backend: str = "gloo",
        use_ray: bool = False,
    ) -> None:
        rank = torch.distributed.get_rank() + rank_offset
        self._model_update_group = gloo_group(master_address, master_port, rank, world_size)

    def receive_weights(self, layout: list[tuple[str, str, list[int]]]) -> None:
        """Receive all parameters in one flat buffer and reload the model. ``layout``: name, dtype and shape of each."""
        sizes = [torch.Size(shape).numel() for _, _, shape in layout]
        dtype = getattr(torch, layout[0][1])
        flat = torch.empty(sum(sizes), dtype=dtype)
        self._model_update_group.broadcast([flat], from_rank_0()).wait()
        parts = flat.split(sizes)
        weights = [(name, part.view(shape)) for (name, _, shape), part in zip(layout, parts, strict=True)]
        self.model_runner.reload_weights(weights_iterator=iter(weights))  # type: ignore[attr-defined]
        self._repack_tied_output_layer()

    def _repack_tied_output_layer(self) -> None:
        """vLLM 0.29 packs linear layers for oneDNN, and again after a reload. It does not reload a tied output layer, which
        would keep a packed copy of the old weights.
        """
        for layer in self.model_runner.get_model().modules():  # type: ignore[attr-defined]
            if isinstance(layer, ParallelLMHead):
                layer.quant_method.process_weights_after_loading(layer)


def seeded_noise(probs: torch.Tensor, generators: Mapping[int, torch.Generator]) -> torch.Tensor:
    """Exponential noise, (requests, vocabulary) as ``probs``, each row from its own generator, if it has one.

    Made of uniform numbers, which torch draws five times as fast on a CPU as exponential ones; double precision keeps rare
    tokens' probabilities.
    """
    noise = torch.empty(probs.shape, dtype=torch.float64)
    if len(generators) < len(noise):
        noise.uniform_()
    for row, generator in generators.items():
        noise[row].uniform_(generator=generator)
    return noise.log_().neg_()


def random_sample(
    probs: torch.Tensor, generators: Mapping[int, torch.Generator], use_fp64_gumbel: bool = False
) -> torch.Tensor:
    """vLLM's function of this name: a token of each request, argmax p / e with noise e."""
    noise = seeded_noise(probs, generators)
    return sampler_module.sample_with_exponential_noise(probs, noise if use_fp64_gumbel else noise.to(probs.dtype))


# On a CPU vLLM 0.29 draws noise for all requests, and again for every seeded one: with a vocabulary of 49,000 tokens, over
# half the time of a pass.
sampler_module.random_sample = random_sample
sampler_module.TopKTopPSampler.forward_cpu = sampler_module.TopKTopPSampler.forward_native
