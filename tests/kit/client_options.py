"""The settings of the client, but without retries and streaming lists if nothing is said."""

from __future__ import annotations

from webop.settings.groups import NetworkingSettings, WatchingSettings
from webop.settings.values import Delays


class Networking(NetworkingSettings):
    error_backoffs: Delays = ()


class Watching(WatchingSettings):
    streaming_list: bool = False
