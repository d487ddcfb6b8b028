"""Where the state of the handling is kept: by default, in annotations of the object itself.

:mod:`~webop.objects.storage.keys` names the annotations, :mod:`~webop.objects.storage.diffbase`
keeps the last handled state, :mod:`~webop.objects.storage.progress` the progress of handlers.
Names and formats are those of Kopf 1.45, so that either can take over the other's objects.
"""
