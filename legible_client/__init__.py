"""A workbench from another process or machine; loads no torch.

from legible_client import Client

client = Client("http://127.0.0.1:8321")                  # token=… or LEGIBLE_TOKEN where the server asks for one
reading = client.read("novel-legible", "It was the best of times, it was the", target=" worst")
reading.value, reading.top[0].id                          # a legible_core.reading.Reading; shows itself in Jupyter
client.page("/models/novel-legible/layers/2")             # any page's JSON
"""

from legible_client.client import Client, Job
from legible_client.errors import ClientError, JobFailed, Refused, ServerFailed, TimedOut, Unknown, Unreachable

__all__ = [
    "Client",
    "ClientError",
    "Job",
    "JobFailed",
    "Refused",
    "ServerFailed",
    "TimedOut",
    "Unknown",
    "Unreachable",
]
