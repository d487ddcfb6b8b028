"""The settings of an operator, in groups (chapter "Configuration").

Users set them in startup handlers (``settings.posting.level = logging.WARNING``), by variables
(``WEBOP_POSTING__LEVEL=30``), or pass an object to ``webop.run(settings=…)``. Assignments are
checked immediately. Times are in seconds.

:mod:`webop.settings.groups` has the groups, :mod:`webop.settings.sections` their base classes and
types, :mod:`webop.settings.environment` the variables.
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
