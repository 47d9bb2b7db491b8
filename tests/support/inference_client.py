"""The simulator's verifying client and load, under the name that tests import."""

from model_server_sim.client import Ask, InferenceClient, Result
from model_server_sim.load import LoadRun

__all__ = ["Ask", "InferenceClient", "LoadRun", "Result"]
