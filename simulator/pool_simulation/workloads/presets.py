"""What typical streams look like: lengths, shared prefixes and turns, with the source of every figure.

A stream that names a preset takes these keys, each unless it gives the key itself. Arrivals, tenants and SLOs
depend on the user and are in no preset. "Assumed" marks what no publication gives. The other figures are
quoted from the sources below; none was measured again.

Sources:

- [vLLM] Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
  SOSP 2023 (arXiv 2309.06180), Figure 11: mean lengths of ShareGPT.
- [Sarathi] Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve",
  OSDI 2024 (arXiv 2403.02310), Table 2: median and 90th percentile of openchat_sharegpt4 and
  arxiv_summarization.
- [Splitwise] Patel et al., "Splitwise: Efficient Generative LLM Inference Using Phase Splitting", ISCA 2024
  (arXiv 2311.18677), section 3: medians of Azure's services "coding" and "conversation" of November 2023,
  whose trace (AzureLLMInferenceTrace_code.csv, _conv.csv) has the means 2048 and 28, 1155 and 211.
- [CachedAttention] Gao et al., USENIX ATC 2024 (arXiv 2403.19708): 73 % of ShareGPT's conversations have
  more than one turn.
- [RAGCache] Jin et al., "RAGCache: Efficient Knowledge Caching for Retrieval-Augmented Generation" (arXiv
  2404.12457): 3 % of the documents serve 60 % of the requests; retrieval adds 1,000 tokens and more to a
  request of 100.
- [Copilot] "GHCP Coding Agent Traces (June 2026)", dataset card in Azure/AzurePublicDataset: 7.83 LLM calls
  a user turn, 86 % of prompt tokens cached.
- [TraceLab] Zhu et al., "TraceLab: Characterizing Coding Agent Workloads for LLM Serving" (arXiv
  2606.30560), token lengths of a step of Claude Code: appended median 857, 90th percentile 5,342; output 252
  and 1,671.
"""

from collections.abc import Mapping
from typing import Any, Final


def _lognormal(median: float, p90: float, *, most: float, least: float = 1) -> dict[str, Any]:
    return {"type": "lognormal", "median": median, "p90": p90, "min": least, "max": most}


# The means of [vLLM] with the ratio of 90th percentile to median of [Sarathi], which is for other cuts of the
# same data: 161 and 338 tokens on average.
_SHAREGPT_PROMPT: Final = _lognormal(105, 345, least=4, most=4096)
_SHAREGPT_OUTPUT: Final = _lognormal(291, 586, most=2048)

PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    # One question, one answer.
    "sharegpt": {"prompt_tokens": _SHAREGPT_PROMPT, "output_tokens": _SHAREGPT_OUTPUT},
    # Several turns behind one of a few system prompts. The geometric count of turns has 27 % single turns
    # ([CachedAttention]). Assumed: system prompts, think time.
    "chat": {
        "prompt_tokens": _SHAREGPT_PROMPT,
        "output_tokens": _SHAREGPT_OUTPUT,
        "system_prompts": {"count": 20, "zipf": 1.0, "tokens": 400},
        "turns": {"count": {"type": "geometric", "mean": 3.7}, "think_s": _lognormal(20, 90, most=600)},
        "max_prompt_tokens": 16_000,
    },
    # The service "conversation" of [Splitwise]: medians 1020 and 129; spread from the trace's means.
    "conversation": {
        "prompt_tokens": _lognormal(1020, 1930, most=16_000),
        "output_tokens": _lognormal(129, 460, most=2_000),
    },
    # The service "coding" of [Splitwise]: medians 1500 and 13; spread from the trace's means.
    "code": {
        "prompt_tokens": _lognormal(1500, 4120, most=16_000),
        "output_tokens": _lognormal(13, 64, most=2_000),
    },
    # Summaries of papers: arxiv_summarization of [Sarathi].
    "long-context": {
        "prompt_tokens": _lognormal(7059, 12_985, most=28_000),
        "output_tokens": _lognormal(208, 371, most=2_000),
    },
    # Retrieved documents in front of a short question ([RAGCache]). A Zipf exponent of 0.963 over 10,000
    # documents gives the first 3 % of them 60 % of the requests. Assumed: the answer, as in "conversation".
    "rag": {
        "prompt_tokens": _lognormal(100, 200, most=2_000),
        "output_tokens": _lognormal(129, 460, most=2_000),
        "system_prompts": {"count": 1, "tokens": 200},
        "documents": {"count": 10_000, "zipf": 0.963, "each": 2, "tokens": _lognormal(500, 900, most=4_000)},
    },
    # A loop of LLM calls and tools over a growing prompt: calls from [Copilot], lengths of a step from
    # [TraceLab]. Assumed: the tools' times, and that a session ends before 30,000 tokens, so that it fits the
    # 32,768 of the default engine; the traces' own contexts are four times as long.
    "agent": {
        "prompt_tokens": _lognormal(857, 5342, most=12_000),
        "output_tokens": _lognormal(252, 1671, most=4_000),
        "system_prompts": {"count": 5, "zipf": 1.0, "tokens": 4_000},
        "turns": {
            "count": {"type": "geometric", "mean": 7.83},
            "think_s": _lognormal(1, 8, least=0.1, most=120),
        },
        "max_prompt_tokens": 30_000,
    },
}
