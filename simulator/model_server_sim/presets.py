"""Engine parameters of two models on two accelerators, each constant with its source. Values only.

Arithmetic, for P parameters, W bytes of weights, L layers, H heads and K key-value heads of size d, on n
accelerators of memory bandwidth B and dense peak F (bytes/s and FLOP/s of the data sheets):

    iteration_s        W / (n B) over the bandwidth that batch-1 decoding reaches in a published measurement
    prefill_token_s    2 P / (n F) over the share of the peak that a published prefill reaches
    attention_pair_s   4 L H d / (n F) over the same share: two products of size H d for each pair and layer
    decode_sequence_s  2 P / (n F), and what scheduling and sampling a sequence costs
    context_token_s    keys and values of a token, 2 L K d times their bytes, over n B times the share reached
    num_gpu_blocks     0.9 of the memory, minus weights and 2 GB for activations, over the bytes of a block

Data sheets: H100 SXM 3.35 TB/s, 989 TFLOP/s in BF16, 1,979 in FP8, 80 GB. A100 SXM 312 TFLOP/s in BF16;
1.555 TB/s with 40 GB, 2.039 TB/s with 80 GB. Llama 3.1 8B: P 8.03e9, L 32, H 32, K 8, d 128. Llama 3.1 and
3.3 70B: P 70.6e9, L 80, H 64, K 8, d 128.

docs/simulator.md compares each preset with published figures (`calibration`).
"""

from collections.abc import Mapping
from types import MappingProxyType

from model_server_sim.params import EngineParams

LLAMA_8B_H100 = EngineParams(
    # 72 GB - 16.1 GB - 2 GB over 128 KiB a token: 411,000 tokens.
    num_gpu_blocks=25_700,
    # 16.06 GB at 3.35 TB/s take 4.8 ms. 6.4 ms are 75 % of the bandwidth: 6.48 ms a token at concurrency 1,
    # vLLM 0.21, FP16 (yobitelcomm.github.io/bench/recipes/concurrency-sweep).
    iteration_s=6.4e-3,
    # 16.06 GFLOP at 45 % of 989 TFLOP/s. Half of the FP8 rate of TensorRT-LLM 0.5 for LLaMA 7B, 36 ms for
    # 2,048 tokens (docs/source/performance.md of NVIDIA/TensorRT-LLM), is 42 %.
    prefill_token_s=36e-6,
    # 524 kFLOP at the same rate.
    attention_pair_s=1.2e-9,
    # 16 us of arithmetic, and 14 us.
    decode_sequence_s=30e-6,
    # 131,072 bytes at 80 % of 3.35 TB/s.
    context_token_s=49e-9,
)

LLAMA_8B_A100_40GB = EngineParams(
    # 36 GB - 16.1 GB - 2 GB over 128 KiB a token: 137,000 tokens.
    num_gpu_blocks=8_500,
    # 77 % of 1.555 TB/s, vLLM 0.23 (johnmusgrave.com/p/vllm-throughput-latency-sweep-on).
    iteration_s=13.2e-3,
    # 16.06 GFLOP at 60 % of 312 TFLOP/s: LLaMA 7B, 133 ms for 2,048 tokens, is 66 % (TensorRT-LLM 0.5).
    prefill_token_s=86e-6,
    attention_pair_s=2.8e-9,
    # 51 us of arithmetic, and 10 us.
    decode_sequence_s=61e-6,
    # 131,072 bytes at 80 % of 1.555 TB/s.
    context_token_s=105e-9,
)

LLAMA_70B_FP8_2XH100 = EngineParams(
    # 144 GB - 70.6 GB - 4 GB over 160 KiB a token (FP8): 424,000 tokens.
    num_gpu_blocks=26_500,
    # 57 % of 2 x 3.35 TB/s: 18.58 ms a token at concurrency 1, NIM 1.8.0, TP2
    # (docs.nvidia.com/nim/benchmarking/llm/1.0.0/performance).
    iteration_s=18.4e-3,
    # 141 GFLOP at 56 % of 2 x 1,979 TFLOP/s; together with attention the rate at which NIM saturates.
    prefill_token_s=64e-6,
    # 2.6 MFLOP in 16 bits at 65 % of 2 x 989 TFLOP/s.
    attention_pair_s=2e-9,
    # 36 us of arithmetic.
    decode_sequence_s=36e-6,
    # 163,840 bytes at 80 % of 2 x 3.35 TB/s.
    context_token_s=31e-9,
)

LLAMA_70B_4XA100 = EngineParams(
    # 288 GB - 141 GB - 8 GB over 320 KiB a token: 424,000 tokens.
    num_gpu_blocks=26_500,
    # 75 % of 4 x 2.039 TB/s, as for 8B on A100; no published batch-1 figure was found.
    iteration_s=23e-3,
    # 141 GFLOP at 65 % of 4 x 312 TFLOP/s: 377 ms for 2,048 tokens, LLaMA 2 70B, TP4 (TensorRT-LLM 0.5).
    prefill_token_s=170e-6,
    attention_pair_s=3.2e-9,
    # 113 us of arithmetic, and 10 us.
    decode_sequence_s=123e-6,
    # 327,680 bytes at 80 % of 4 x 2.039 TB/s.
    context_token_s=50e-9,
)

PRESETS: Mapping[str, EngineParams] = MappingProxyType(
    {
        "llama-8b-h100": LLAMA_8B_H100,
        "llama-8b-a100-40gb": LLAMA_8B_A100_40GB,
        "llama-70b-fp8-2xh100": LLAMA_70B_FP8_2XH100,
        "llama-70b-4xa100": LLAMA_70B_4XA100,
    }
)
