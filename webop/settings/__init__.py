"""The settings of an operator, in groups (chapter "Configuration").

Changed in startup handlers (``settings.posting.level = logging.WARNING``), by the environment
(``WEBOP_POSTING__LEVEL=30``), or given ready-made to ``webop.run(settings=…)``. Assignments are
checked at once. Times are in seconds.

The groups are in :mod:`webop.settings.groups`, what they are made of in
:mod:`webop.settings.sections`, the variables in :mod:`webop.settings.environment`.
"""

from webop.settings.groups import (
    AdmissionSettings,
    BackgroundSettings,
    BatchingSettings,
    ExecutionSettings,
    LeadershipSettings,
    NetworkingSettings,
    OperatorSettings,
    PeeringSettings,
    PersistenceSettings,
    PostingSettings,
    ProcessSettings,
    ScanningSettings,
    WatchingSettings,
)
from webop.settings.sections import Delays, PoolSection, Section, find_setting_problem

__all__ = [
    "AdmissionSettings",
    "BackgroundSettings",
    "BatchingSettings",
    "Delays",
    "ExecutionSettings",
    "LeadershipSettings",
    "NetworkingSettings",
    "OperatorSettings",
    "PeeringSettings",
    "PersistenceSettings",
    "PoolSection",
    "PostingSettings",
    "ProcessSettings",
    "ScanningSettings",
    "Section",
    "WatchingSettings",
    "find_setting_problem",
]
