"""The verifying load client under the name that tests import; it lives with the simulator."""

from model_server_sim.client import Ask, InferenceClient, Result
from model_server_sim.load import LoadRun

__all__ = ["Ask", "InferenceClient", "LoadRun", "Result"]
