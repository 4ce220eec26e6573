"""RPO: reinforcement fine-tuning that replays the head of an earlier reasoning path, on top of OpenRLHF."""

__version__ = "0.1.0"
